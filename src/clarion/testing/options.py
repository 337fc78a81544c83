"""What can be said to `embedded()`, and what it makes of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from clarion.broker.config import Durability
from clarion.broker.settings import PYTHON_NAMES

__tracebackhide__: Final = True  # by pytest, as in embedded_broker

Topics = Iterable[str] | Mapping[str, int]

QUICK: Final[dict[str, Any]] = {
    "group_initial_rebalance_delay_ms": 0,  # nobody else is coming
    "group_min_session_timeout_ms": 1,  # a test of a lost member need not take six seconds
    "offsets_partitions": 1,
    "retention_check_seconds": 1.0,
    "compaction_check_seconds": 5.0,
    "keeps_events": False,  # of a cluster: no topic that nobody has asked for
    "reserve_bytes": 0,  # a test is not about how full this machine's disk is
}
COMPACT_ALWAYS: Final = {"min.cleanable.dirty.ratio": "0"}  # `run_housekeeping` compacts what there is to compact
_OUR_OWN: Final = frozenset(("data_dir", "listeners", "durability", "topic_defaults"))


def broker_options(durability: str, settings: Mapping[str, object], config: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments for `broker_config`; TypeError or ValueError where they cannot be."""
    known = PYTHON_NAMES - _OUR_OWN
    for name in config:
        if name not in known:
            raise TypeError(f"embedded() does not know {name!r}; besides its own it takes {', '.join(sorted(known))}")
    return {
        **QUICK,
        **config,
        "durability": Durability(durability),
        "topic_defaults": {**COMPACT_ALWAYS, **topic_settings(settings)},
    }


def topic_settings(settings: Mapping[str, object]) -> dict[str, str]:
    """Kafka's names (`retention.ms`; in keyword arguments `retention_ms`), and values as Kafka writes them."""
    return {name.replace("_", "."): _as_text(value) for name, value in settings.items()}


def _as_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def topic_sizes(topics: Topics) -> dict[str, int]:
    """Names with their numbers of partitions."""
    if isinstance(topics, Mapping):
        return dict(topics)
    return dict.fromkeys([topics] if isinstance(topics, str) else topics, 1)
