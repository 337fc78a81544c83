"""Who needs the messages of a topic: a row for each subscription and group, over all partitions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from clarion.cli.log_dirs import NeededBy
from clarion.cli.table import Column
from clarion.cli.units import bytes_text, time_text

HOLDER_COLUMNS: Final = [
    Column("name", "NEEDED BY", style="cyan"),
    Column("kind", "KIND"),
    Column("until", "UNTIL"),
    Column("size_bytes", "SIZE", bytes_text, right=True),
    Column("since_ms", "SINCE", lambda since_ms: "-" if since_ms is None else time_text(since_ms)),
]


def holder_rows(holders: Iterable[NeededBy]) -> list[dict[str, Any]]:
    """The one that needs most first."""
    by_name: dict[tuple[str, bool], list[NeededBy]] = {}
    for one in holders:
        by_name.setdefault((one.name, one.is_group), []).append(one)
    rows = [_row(of_one) for of_one in by_name.values()]
    return sorted(rows, key=lambda row: (-row["size_bytes"], row["name"]))


def _row(parts: list[NeededBy]) -> dict[str, Any]:
    first = parts[0]
    since = [one.since_ms for one in parts if one.since_ms >= 0]
    return {
        "name": first.name,
        "kind": "group" if first.is_group else "subscription",
        "until": "acknowledged" if first.until_acknowledged else "expired",
        "size_bytes": sum(one.held_bytes for one in parts),
        "since_ms": min(since, default=None),
        "from_offsets": {str(partition): one.from_offset for one in parts for _, partition in (one.place,)},
    }
