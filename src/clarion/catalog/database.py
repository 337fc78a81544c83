"""The catalog's database, synchronous, for one thread: SQLite and PostgreSQL by the same statements.

SQLite: a write-ahead log with `synchronous=FULL`, so that a commit is on the device when it returns; one connection,
which locks all others out; every page is checked when it is opened. PostgreSQL: one connection as well, found again
when it was lost; nothing waits for it without end.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

from sqlalchemy import (
    URL,
    BindParameter,
    Connection,
    Engine,
    bindparam,
    create_engine,
    delete,
    event,
    func,
    insert,
    select,
    update,
)
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError

from clarion.catalog.content import NO_REVISION, CatalogAwayError, CatalogNews, CatalogUnusableError
from clarion.catalog.migrating import migrate
from clarion.catalog.tables import STATE_ID, endpoint_row, endpoints, read_subscription, state, subscription_row
from clarion.catalog.tables import subscriptions as table
from clarion.model.errors import ErrorCode, KafkaError
from clarion.model.subscription import Subscription
from clarion.world import RealDisk, replace_file

SUBSCRIPTIONS_MAX: Final = 10_000  # all of them are in every broker's memory, and each costs it a few hundred bytes
_CONNECT_SECONDS: Final = 5
_STATEMENT_MS: Final = 10_000  # every one takes milliseconds; a lock that somebody else forgot is not waited for longer
_DAMAGED: Final = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_ROWS_PER_QUERY: Final = 500  # names in one IN (…); SQLite takes 32,766


class CatalogDatabase:
    """Opened, checked and brought up to date by being made. CatalogError where that cannot be."""

    def __init__(self, place: str) -> None:
        """`place`: the path of a SQLite file, or a URL of PostgreSQL's."""
        self._place = place
        with self._errors():
            self._engine = open_engine(place)
        try:
            with self._transaction() as connection:
                if connection.dialect.name == "sqlite":
                    _check_pages(connection)
                migrate(connection)
        except BaseException:
            self._engine.dispose()
            raise

    def close(self) -> None:
        self._engine.dispose()

    def revision(self) -> int:
        with self._transaction() as connection:
            return _revision(connection)

    def news(self, known: int) -> CatalogNews | None:
        with self._reading() as connection:
            revision = _revision(connection)
            if revision == known:
                return None
            if revision < known:  # somebody has put an older copy in its place
                known = NO_REVISION
            revisions: dict[str, int] = dict(connection.execute(select(table.c.name, table.c.revision)).all())
            changed = [name for name, changed_in in revisions.items() if changed_in > known]
            found = tuple(self._read(connection, changed))
            return CatalogNews(revision, found, frozenset(revisions))

    def save(self, subscription: Subscription, expected: int) -> Subscription:
        with self._transaction() as connection:
            saved = replace(subscription, revision=_raise_revision(connection))
            _check_unchanged(connection, saved.name, expected)
            if expected == NO_REVISION:
                _check_room(connection)
                connection.execute(insert(table), subscription_row(saved))
            else:
                row = subscription_row(saved)
                connection.execute(update(table).where(table.c.name == saved.name).values(row))
            connection.execute(delete(endpoints).where(endpoints.c.subscription == saved.name))
            if saved.push is not None:
                connection.execute(insert(endpoints), endpoint_row(saved.name, saved.push))
        return saved

    def remove(self, name: str, expected: int) -> None:
        with self._transaction() as connection:
            _raise_revision(connection)
            _check_unchanged(connection, name, expected)
            connection.execute(delete(endpoints).where(endpoints.c.subscription == name))
            connection.execute(delete(table).where(table.c.name == name))

    def _read(self, connection: Connection, names: list[str]) -> Iterator[Subscription]:
        by_name, of_endpoint = table.c.name.in_, endpoints.c.subscription.in_
        some: BindParameter[Any] = bindparam("some", expanding=True)
        for at in range(0, len(names), _ROWS_PER_QUERY):
            part = {"some": names[at : at + _ROWS_PER_QUERY]}
            pushed = connection.execute(select(endpoints).where(of_endpoint(some)), part).mappings().all()
            by_subscription = {row["subscription"]: row for row in pushed}
            for row in connection.execute(select(table).where(by_name(some)), part).mappings():
                yield self._subscription(row, by_subscription.get(row["name"]))

    def _subscription(self, row: Any, endpoint: Any) -> Subscription:
        try:
            return read_subscription(row, endpoint)
        except (ValueError, TypeError) as error:
            raise CatalogUnusableError(f"the catalog's row of {row['name']!r} cannot be read: {error}") from error

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        with self._errors(), self._engine.begin() as connection:
            yield connection

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        """All that is read is of one moment."""
        with self._errors(), self._engine.connect() as connection:
            if connection.dialect.name == "postgresql":
                connection = connection.execution_options(isolation_level="REPEATABLE READ")
            with connection.begin():
                yield connection

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except DBAPIError as error:
            raise self._translated(error) from error
        except ArgumentError:  # which may quote the URL, and with it a password
            raise CatalogUnusableError(
                "clarion.catalog is no address of a catalog; write sqlite, or postgresql+psycopg://USER@HOST/DATABASE"
            ) from None
        except ModuleNotFoundError as error:
            raise CatalogUnusableError(f"{error}; pip install 'clarion-broker[postgres]'") from error
        except SQLAlchemyError as error:
            raise CatalogAwayError(_first_line(error)) from error

    def _translated(self, error: DBAPIError) -> Exception:
        code = int(getattr(error.orig, "sqlite_errorcode", 0) or 0) & 0xFF
        if code in _DAMAGED:
            return _damaged(self._place, _first_line(error.orig))
        return CatalogAwayError(_first_line(error.orig))


def open_engine(place: str) -> Engine:
    if "://" in place:
        return _postgresql(place)
    _make_file(place)
    engine = create_engine(
        URL.create("sqlite+pysqlite", database=place),
        connect_args={"isolation_level": None, "timeout": 0},
        pool_size=1,
        max_overflow=0,
    )
    event.listen(engine, "connect", _prepare_sqlite)
    # Python's driver begins no transaction for tables that are made: one that breaks off would leave half of them.
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))
    return engine


def _postgresql(place: str) -> Engine:
    try:
        url = make_url(place)
    except ValueError:  # a port that is no number
        raise ArgumentError("") from None
    if url.get_backend_name() != "postgresql":
        raise ArgumentError(url.drivername)
    told: dict[str, Any] = {
        "connect_timeout": _CONNECT_SECONDS,
        "application_name": "clarion",
        "options": f"-c statement_timeout={_STATEMENT_MS} -c lock_timeout={_STATEMENT_MS}",
        "tcp_user_timeout": _STATEMENT_MS,
    }
    return create_engine(
        url.set(drivername="postgresql+psycopg"),
        connect_args={name: value for name, value in told.items() if name not in url.query},
        pool_size=1,
        max_overflow=0,
        pool_timeout=_CONNECT_SECONDS,
        pool_pre_ping=True,
    )


def _make_file(path: str) -> None:
    """Its owner's alone, as is the write-ahead log, which takes after it."""
    if os.path.exists(path):
        return
    for leftover in (path + "-wal", path + "-journal"):  # of a catalog that is gone: this one they would damage
        if os.path.exists(leftover):
            os.unlink(leftover)
    replace_file(RealDisk(), path, b"")


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    for pragma in ("locking_mode=EXCLUSIVE", "journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {pragma}").fetchall()


def _check_pages(connection: Connection) -> None:
    found = connection.exec_driver_sql("PRAGMA integrity_check(1)").scalar()
    if found != "ok":
        raise _damaged(str(connection.engine.url.database), " ".join(str(found).split()))


def _damaged(path: str, what: str) -> CatalogUnusableError:
    return CatalogUnusableError(
        f"{path} is damaged: {what}. Restore the file from a copy, or move it away to start without subscriptions"
    )


def _revision(connection: Connection) -> int:
    return int(connection.execute(select(state.c.revision).where(state.c.id == STATE_ID)).scalar_one())


def _raise_revision(connection: Connection) -> int:
    """Whoever has raised it is alone until the end of the transaction."""
    connection.execute(update(state).where(state.c.id == STATE_ID).values(revision=state.c.revision + 1))
    return _revision(connection)


def _check_unchanged(connection: Connection, name: str, expected: int) -> None:
    present = connection.execute(select(table.c.revision).where(table.c.name == name)).scalar()
    if (present or NO_REVISION) != expected:
        raise KafkaError(
            ErrorCode.UNKNOWN_SERVER_ERROR,  # which clients may try again
            f"somebody else changed subscription {name!r} meanwhile; look at it and try again",
        )


def _check_room(connection: Connection) -> None:
    count = connection.execute(select(func.count()).select_from(table)).scalar_one()
    if count >= SUBSCRIPTIONS_MAX:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION, f"there are {count} subscriptions, as many as can be; delete one that is unused"
        )


def _first_line(error: object) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
