"""Brokers with one safety rule switched off. A simulation that does not find them out tests nothing.

Each mutant patches one rule and names the moods (`Swarm` fields) in which it matters, so that the search is short.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

from clarion.broker import partitions as broker_partitions
from clarion.broker.apis import k01_fetch
from clarion.broker.config import Durability
from clarion.broker.group_service import Shard, _reply
from clarion.log import log, recovery
from clarion.log.flush import FlushTicket
from clarion.log.recovery import open_clean
from clarion.replication import partition
from clarion.replication.producers import ProducerStates
from tests.sim.machine import Drive
from tests.sim.scenario import Swarm

POWER = {"faults": ("power", "power_at_write"), "durability": Durability.FSYNC}


@dataclass(frozen=True)
class Mutant:
    name: str
    rule: str
    target: Any
    attribute: str
    replacement: Any
    mood: dict[str, Any] = field(default_factory=lambda: dict(POWER))

    @contextmanager
    def switched_on(self) -> Iterator[None]:
        with patch.object(self.target, self.attribute, self.replacement):
            yield

    def swarm(self, drawn: Swarm) -> Swarm:
        return dataclasses.replace(drawn, **self.mood)


class _AlwaysRight(int):
    """A checksum that matches whatever it is compared with."""

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False

    __hash__ = int.__hash__


def _sync_nothing(ticket: FlushTicket) -> None:
    ticket.has_run = True


def _without_file_sync(original: Callable[[FlushTicket], None]) -> Callable[[FlushTicket], None]:
    def run(ticket: FlushTicket) -> None:
        ticket._files = []
        original(ticket)

    return run


def _forget_to_sync_names(drive: Drive, path: str) -> None:
    drive.happen("sync_folder", path)


def _sync_errors_pass(original: Callable[[FlushTicket], None]) -> Callable[[FlushTicket], None]:
    def run(ticket: FlushTicket) -> None:
        try:
            original(ticket)
        except OSError:
            ticket.may_try_again = True
            raise

    return run


def _trusting(folder: Any, bases: list[int], recovery_point: int, now_ms: int, *, has_failed_sync: bool) -> Any:
    return open_clean(folder, bases, recovery_point, now_ms)


def _uncommitted_too(asked: Any, found: Any, budget: int, *, is_first: bool) -> Any:
    if asked.next_offset >= found.next_offset:
        return []
    most = min(asked.max_bytes, max(budget, 0))
    return found.log.read(asked.next_offset, most, found.log.end, at_least_one_batch=is_first)


def _reply_at_once(shard: Shard, outcome: Any) -> None:
    _reply(outcome)


async def _load_nothing(shard: Shard) -> None:
    shard._is_loaded = True
    shard.coordinator.after_load(shard._now_ms(), shard._broker.clock.now_ms())


def _never_durable(original: Callable[..., None]) -> Callable[..., None]:
    def configure(one: partition.Partition, settings: Any) -> None:
        original(one, settings)
        one._is_durable = False
        if one.high_watermark < one.log.end:
            one._advance(one.log.end)

    return configure


def _forget_producers(*_: Any, **__: Any) -> ProducerStates:
    return ProducerStates()


def _accept_everything(states: ProducerStates, header: Any) -> None:
    return None


MUTANTS = (
    Mutant(
        "ack before flush",
        "with fsync durability the watermark never passes what was flushed",
        partition.Partition,
        "configure",
        _never_durable(partition.Partition.configure),
    ),
    Mutant("flush of nothing", "a flush syncs", FlushTicket, "run", _sync_nothing),
    Mutant("flush without the log", "a flush syncs the data", FlushTicket, "run", _without_file_sync(FlushTicket.run)),
    Mutant("folders never synced", "a name is synced with what it names", Drive, "sync_folder", _forget_to_sync_names),
    Mutant(
        "failed sync tried again",
        "a sync that failed is final",
        FlushTicket,
        "run",
        _sync_errors_pass(FlushTicket.run),
        {"faults": ("eio",), "durability": Durability.FSYNC},
    ),
    Mutant("recovery that trusts the tail", "after a crash every batch is checked", log, "recover", _trusting),
    Mutant(
        "recovery without checksums", "a batch must match its checksum", recovery, "crc32c", lambda _: _AlwaysRight()
    ),
    Mutant(
        "readers see the uncommitted",
        "nobody reads past the watermark",
        k01_fetch,
        "_slices",
        _uncommitted_too,
        {**POWER, "thread_seconds": (0.05, 0.4)},
    ),
    Mutant(
        "commits answered before they are safe",
        "a coordinator's reply waits for its records",
        Shard,
        "_reply_when_safe",
        _reply_at_once,
        {**POWER, "thread_seconds": (0.05, 0.4)},
    ),
    Mutant(
        "coordinator that forgets",
        "groups are loaded from the log",
        Shard,
        "load",
        _load_nothing,
        {"faults": ("kill", "stop")},
    ),
    Mutant(
        "producers forgotten at start",
        "sequences survive a restart",
        broker_partitions,
        "load_producers",
        _forget_producers,
        {"faults": ("kill", "reset"), "latency_seconds": (0.01, 0.2)},
    ),
    Mutant(
        "sequences not checked",
        "a batch sent again is written once",
        ProducerStates,
        "check",
        _accept_everything,
        {"faults": ("reset",), "latency_seconds": (0.01, 0.2)},
    ),
)
