"""Spark on Clarion: topics as DataFrames, pipelines as code, lake tables.

    from clarion.pipeline import pipeline, topic, table

The names below load on first use. Executors import this package too, from a zip that holds only its executor-safe
rooms (`kafka`, `source`, `sink`, `quarantine`): nothing here may import more than the standard library by itself.

It never imports the broker: a pipeline meets a broker as any other client does, over the wire.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clarion.pipeline.definition import DefinitionError, pipeline
    from clarion.pipeline.spark_session import session
    from clarion.pipeline.table_reference import table
    from clarion.pipeline.topic_reference import topic

__all__ = ["DefinitionError", "archive", "latest", "pipeline", "replay", "rollup", "session", "table", "topic"]

_HOMES = {
    "DefinitionError": "definition",
    "archive": "ready.archive",
    "latest": "ready.latest",
    "pipeline": "definition",
    "replay": "ready.replay",
    "rollup": "ready.rollup",
    "session": "spark_session",
    "table": "table_reference",
    "topic": "topic_reference",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{home}"), name)


def __dir__() -> list[str]:
    return __all__
