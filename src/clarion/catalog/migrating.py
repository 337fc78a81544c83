"""A catalog of any version, brought up to this one: in one transaction, so that an interrupted one begins anew."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Final

from sqlalchemy import Connection, inspect, text

from clarion.catalog.content import CatalogUnusableError

if TYPE_CHECKING:
    from alembic.config import Config

NEWEST: Final = "0002"
_LOCK: Final = 0x436C6172696F6E  # "Clarion": of several brokers that start at once, one migrates and the others wait
_FOLDER: Final = os.path.join(os.path.dirname(__file__), "migrations")


def migrate(connection: Connection, to: str = NEWEST) -> None:
    """`to`: an older one, for tests."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
    present = _version(connection)
    if present == to:
        return
    logging.getLogger("alembic").setLevel(logging.WARNING)  # its plugins and steps are no event of a broker
    from alembic import command  # most opens find nothing to do

    config = alembic_config()
    if present is not None and present not in versions():
        raise CatalogUnusableError(
            f"the catalog has version {present}, this version of Clarion knows {NEWEST}; use a newer version"
        )
    config.attributes["connection"] = connection
    command.upgrade(config, to)


def versions() -> list[str]:
    """All that there are, the first one first."""
    from alembic.script import ScriptDirectory

    return [one.revision for one in ScriptDirectory.from_config(alembic_config()).walk_revisions()][::-1]


def alembic_config() -> Config:
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", _FOLDER.replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config


def _version(connection: Connection) -> str | None:
    if not inspect(connection).has_table("alembic_version"):
        return None
    found = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
    return None if found is None else str(found)
