"""Catalogs of every earlier version open with everything in them; a migration that breaks off begins anew."""

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Engine, event, inspect, text

from clarion.catalog.content import CatalogUnusableError
from clarion.catalog.database import CatalogDatabase, open_engine
from clarion.catalog.migrating import NEWEST, alembic_config, migrate, versions
from clarion.catalog.tables import METADATA
from clarion.model.beginnings import Beginnings
from clarion.model.subscription import CONSUMED, PushEndpoint, Subscription

FIRST_WITH_BEGINNINGS = "0002"
OLDER = Path(__file__).parent / "older"
KEPT = (
    Subscription(
        name="billing",
        topics=("orders", "payments"),
        retention_ms=CONSUMED,
        created_ms=1_700_000_000_000,
        revision=1,
        begins=Beginnings({UUID("0123456789abcdef0123456789abcdef"): {0: 5, 11: 7}}),
    ),
    Subscription(
        name="hook",
        pattern="orders-.*",
        mode="stream",
        filter='key == "ü"',
        retention_ms=14 * 86_400_000,
        ack_timeout_ms=60_000,
        max_deliveries=20,
        backoff_min_ms=1_000,
        backoff_max_ms=60_000,
        dead_letter_topic="lost",
        per_key_order=True,
        window=7,
        message_ttl_ms=10**12,
        start="by_duration:PT1H",
        paused=True,
        created_ms=1_700_000_000_001,
        revision=2,
        guarantee="at-most-once",
        push=PushEndpoint(
            url="https://example.org/hook",
            secret="whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA",
            batch_max=10,
            ordered=True,
            timeout_ms=5_000,
            headers=(("x-team", "a b"),),
            allow_private=True,
        ),
    ),
)


def test_the_newest_version_is_the_one_that_is_opened():
    assert ScriptDirectory.from_config(alembic_config()).get_heads() == [NEWEST]
    assert versions()[-1] == NEWEST


def test_of_every_version_there_is_what_it_wrote():
    assert {path.stem for path in OLDER.iterdir()} == set(versions())


@pytest.mark.parametrize("version", versions())
def test_a_catalog_of_every_version_opens_with_everything_in_it(place: str, version: str):
    engine = open_engine(place)
    with engine.begin() as connection:
        migrate(connection, version)
        for statement in (OLDER / f"{version}.sql").read_text().splitlines():
            connection.exec_driver_sql(statement)
    engine.dispose()
    catalog = CatalogDatabase(place)
    news = catalog.news(0)
    catalog.close()
    assert news is not None
    kept = [replace(one, begins=None) if version < FIRST_WITH_BEGINNINGS else one for one in KEPT]
    assert sorted(news.changed, key=lambda one: one.name) == kept


def test_what_migrations_make_is_what_this_version_reads(place: str):
    CatalogDatabase(place).close()
    engine = open_engine(place)
    with engine.begin() as connection:
        differences = compare_metadata(MigrationContext.configure(connection), METADATA)
    engine.dispose()
    assert differences == []


class Interrupted(Exception):
    pass


def interrupted_after(engine: Engine, statements: int) -> Callable[[], int]:
    """The process ends before this statement; returns how many there were."""
    seen = 0

    def count(*_: object) -> None:
        nonlocal seen
        seen += 1
        if seen > statements:
            raise Interrupted

    event.listen(engine, "before_cursor_execute", count)
    return lambda: seen


def test_a_migration_that_breaks_off_anywhere_begins_anew(new_place: Callable[[], str]):
    for statements in range(1_000):
        place = new_place()
        engine = open_engine(place)
        seen = interrupted_after(engine, statements)
        try:
            with engine.begin() as connection:
                migrate(connection)
        except Interrupted:
            engine.dispose()
            assert _tables(place) == []
            CatalogDatabase(place).close()
            assert set(METADATA.tables) < set(_tables(place))
        else:
            engine.dispose()
            assert seen() > 4, "it made tables"
            return


def _tables(place: str) -> list[str]:
    engine = open_engine(place)
    with engine.connect() as connection:
        found = inspect(connection).get_table_names()
    engine.dispose()
    return found


def test_a_catalog_of_a_newer_version_is_left_alone(place: str):
    CatalogDatabase(place).close()
    engine = open_engine(place)
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    engine.dispose()
    with pytest.raises(CatalogUnusableError, match=r"has version 9999.*use a newer version"):
        CatalogDatabase(place)


def test_a_broker_does_not_log_the_steps_of_alembic(place: str, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO)
    logging.getLogger("alembic").setLevel(logging.NOTSET)
    CatalogDatabase(place).close()
    assert [record.getMessage() for record in caplog.records if record.name.startswith("alembic")] == []
