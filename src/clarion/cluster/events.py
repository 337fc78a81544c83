"""What the cluster manager decided lately, in sentences: kept in the store, so that whoever decides next goes on.

A ring of a few hundred keys: `events/000` … The latest overwrite the oldest.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Final, NamedTuple

from clarion.cluster.changes import until_answered
from clarion.cluster.coordination import CoordinationStore, Entry, Put

EVENTS: Final = "events/"
_KEPT: Final = 500  # some days of a calm cluster, some hours of a wild one; 100 KB
_SENTENCE_MAX: Final = 2000  # characters


class ClusterEvent(NamedTuple):
    number: int
    at_ms: int
    sentence: str

    @classmethod
    def of(cls, value: bytes) -> ClusterEvent:
        said = json.loads(value)
        return cls(int(said["number"]), int(said["at"]), str(said["event"]))

    @property
    def put(self) -> Put:
        said = {"number": self.number, "at": self.at_ms, "event": self.sentence[:_SENTENCE_MAX]}
        return Put(f"{EVENTS}{self.number % _KEPT:03d}", json.dumps(said, separators=(",", ":")).encode())


def events_in(entries: Iterable[Entry]) -> list[ClusterEvent]:
    """Those among them that are events, the latest last."""
    return sorted(ClusterEvent.of(one.value) for one in entries if one.key.startswith(EVENTS))


async def read_events(store: CoordinationStore) -> list[ClusterEvent]:
    return events_in((await until_answered(lambda: store.range(EVENTS))).entries)
