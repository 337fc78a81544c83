"""Brokers with one safety rule switched off. A simulation that does not find them out tests nothing.

Each mutant patches one rule and names the moods (`Swarm` fields) in which it matters, so that the search is short.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from unittest.mock import patch
from uuid import UUID

from clarion.broker import partitions as broker_partitions
from clarion.broker.apis import fetch_reading
from clarion.broker.config import Durability
from clarion.broker.coordinator_shard import CoordinatorShard
from clarion.broker.waiting import reply_to_all
from clarion.cluster import TopicRegistry, changes
from clarion.cluster.coordination import Revision, TransactionResult
from clarion.cluster.counters import ProducerIds
from clarion.groups import consumer_heartbeat, offset_requests
from clarion.groups.reconciliation import reconcile
from clarion.log import log, recovery, retention
from clarion.log.flush import FlushTicket
from clarion.log.key_map import KeyMap
from clarion.log.offset_files import OffsetFiles
from clarion.log.recovery import open_clean
from clarion.log.times import TimeSearch
from clarion.model.ids import TopicPartition
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
        return dataclasses.replace(drawn, **{"store_losses": 0.0, **self.mood})


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


def _reply_at_once(shard: CoordinatorShard[Any], outcome: Any) -> None:
    reply_to_all(outcome)


async def _load_nothing(shard: CoordinatorShard[Any]) -> None:
    shard._is_loaded = True
    shard.coordinator.after_load(shard._now_ms(), shard._broker.clock.now_ms())


def _never_durable(original: Callable[..., None]) -> Callable[..., None]:
    def configure(one: partition.Partition, settings: Any) -> None:
        original(one, settings)
        one._is_durable = False
        one._perform(one._leader.configure(is_durable=False, min_in_sync=1))

    return configure


def _forget_producers(*_: Any, **__: Any) -> ProducerStates:
    return ProducerStates()


def _accept_everything(states: ProducerStates, header: Any) -> None:
    return None


def _known_by_name(saved: dict[Any, Any], claimed: Mapping[TopicPartition, UUID]) -> dict[Any, Any]:
    """Entries of topics that are gone are taken for those of today's topics with the same names."""
    for tp, today in claimed.items():
        for (topic_id, index), offsets in list(saved.items()):
            if _NAMES.get(topic_id) == tp.topic:
                saved.setdefault((today, index), offsets)
    return saved


_NAMES: dict[UUID, str] = {}


def _loading_by_name(original: Callable[..., Any]) -> Callable[..., Any]:
    def load(files: OffsetFiles, claimed: Mapping[TopicPartition, UUID], **how: Any) -> Any:
        _NAMES.update({topic_id: tp.topic for tp, topic_id in claimed.items()})
        return _known_by_name(original(files, claimed, **how), claimed)

    return load


def _without_starts(original: Callable[..., Any]) -> Callable[..., Any]:
    def load(files: OffsetFiles, claimed: Mapping[TopicPartition, UUID], **how: Any) -> Any:
        return {key: saved._replace(start=0) for key, saved in original(files, claimed, **how).items()}

    return load


def _in_memory(method: Callable[..., Any]) -> Callable[..., Any]:
    """A change of the topics that the store never hears of."""

    async def follow_only(registry: TopicRegistry, operations: Any) -> None:
        for one in operations:
            registry._follow([one], registry._revision_of(one.key) or Revision(1))

    async def change(registry: TopicRegistry, *args: Any) -> Any:
        with patch.object(registry, "_change", partial(follow_only, registry)):
            return await method(registry, *args)

    return change


async def _same_block_again(ids: ProducerIds) -> None:
    ids._block = iter(range(1_000))


def _take_the_last_for_old(keys: KeyMap, key: bytes, offset: int) -> None:
    _PUT(keys, key, offset + 1)


_PUT = KeyMap.put


def _everything_is_settled(view: Any, since_ms: int, arrivals: Any) -> int:
    return view.next_offset


def _first_of_the_batch(
    search: TimeSearch, segment: Any, header: Any, position: int, timestamp_ms: int
) -> tuple[int, int]:
    return header.base_timestamp, max(header.base_offset, search._start_offset)


def _without_waiting_for_release(
    current: Any, target: Any, target_epoch: int, is_free: Any, owned: Any, original: Any = reconcile
) -> Any:
    return original(current, target, target_epoch, lambda _: True, owned)


def _same_epoch(original: Callable[..., Any]) -> Callable[..., Any]:
    def next_term(registry: TopicRegistry, *args: Any) -> Any:
        state = original(registry, *args)
        return state._replace(leader_epoch=max(0, state.leader_epoch - 2))

    return next_term


def _nothing(*_: Any, **__: Any) -> None:
    return None


async def _not_done(*_: Any) -> TransactionResult:
    return TransactionResult(False, Revision(0))


OWNERS = {"owners": 2, "owner_seconds": (0.0, 0.02), "thread_seconds": (0.0001, 0.002)}
FAST_ROLLS = {
    **POWER,
    "segment_bytes": 1500,
    "producers": 3,
    "window": 5,
    "send_seconds": (0.0, 0.02),
    "latency_seconds": (0.0001, 0.001),
    "thread_seconds": (0.05, 0.4),
}
RESTARTS = {"faults": ("kill", "stop"), "gap_seconds": (0.3, 3.0), **OWNERS}

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
        "recovery without checksums",
        "a batch must match its checksum",
        recovery,
        "crc32c",
        lambda _: _AlwaysRight(),
        {**FAST_ROLLS, "segment_bytes": 1 << 20, "gap_seconds": (0.3, 3.0)},
    ),
    Mutant(
        "readers see the uncommitted",
        "nobody reads past the watermark",
        fetch_reading,
        "_slices",
        _uncommitted_too,
        {**POWER, "thread_seconds": (0.05, 0.4)},
    ),
    Mutant(
        "commits answered before they are safe",
        "a coordinator's reply waits for its records",
        CoordinatorShard,
        "_reply_when_safe",
        _reply_at_once,
        {**POWER, "thread_seconds": (0.05, 0.4)},
    ),
    Mutant(
        "coordinator that forgets",
        "groups are loaded from the log",
        CoordinatorShard,
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
    Mutant(
        "recovery point at the log's end",
        "a recovery point never passes what was flushed",
        partition.Partition,
        "recovery_point",
        property(lambda one: one.log.next_offset),
        {**FAST_ROLLS, "checkpoint_seconds": 0.5},
    ),
    Mutant(
        "checkpoints by name",
        "a checkpoint belongs to a topic's id",
        OffsetFiles,
        "load",
        _loading_by_name(OffsetFiles.load),
        {**RESTARTS, "checkpoint_seconds": 0.5},
    ),
    Mutant(
        "start offsets forgotten",
        "deleted records stay deleted",
        OffsetFiles,
        "load",
        _without_starts(OffsetFiles.load),
        RESTARTS,
    ),
    Mutant(
        "topics made in memory",
        "a topic exists when the store has it",
        TopicRegistry,
        "add",
        _in_memory(TopicRegistry.add),
        RESTARTS,
    ),
    Mutant(
        "topics deleted in memory",
        "a topic is gone when the store has forgotten it",
        TopicRegistry,
        "delete",
        _in_memory(TopicRegistry.delete),
        RESTARTS,
    ),
    Mutant(
        "partitions added in memory",
        "a topic has grown when the store knows",
        TopicRegistry,
        "grow",
        _in_memory(TopicRegistry.grow),
        RESTARTS,
    ),
    Mutant(
        "settings in memory",
        "a setting is changed when the store has it",
        TopicRegistry,
        "configure",
        _in_memory(TopicRegistry.configure),
        RESTARTS,
    ),
    Mutant(
        "producer ids given twice",
        "a block of producer ids is taken in the store first",
        ProducerIds,
        "_take_block",
        _same_block_again,
        RESTARTS,
    ),
    Mutant(
        "compaction drops the last",
        "compaction keeps a key's last record",
        KeyMap,
        "put",
        _take_the_last_for_old,
        {"faults": ("reset",), **OWNERS},
    ),
    Mutant(
        "retention without grace",
        "nobody loses what was just written, whatever time it carries",
        retention,
        "_settled",
        _everything_is_settled,
        {"faults": ("reset",), **OWNERS},
    ),
    Mutant(
        "a search ends at the batch",
        "a search by time finds the first record that is late enough",
        TimeSearch,
        "_in_batch",
        _first_of_the_batch,
        {"faults": ("reset",), **OWNERS},
    ),
    Mutant(
        "commits of old generations",
        "a member of an older generation commits nothing",
        offset_requests,
        "_check_classic_commit",
        _nothing,
        {"faults": ("hold", "freeze", "reset"), "classic_members": 3, "gap_seconds": (0.3, 3.0)},
    ),
    Mutant(
        "partitions given before they are released",
        "a partition has one owner at a time",
        consumer_heartbeat,
        "reconcile",
        _without_waiting_for_release,
        {"faults": ("reset",), "consumer_members": 3},
    ),
    Mutant(
        "an epoch used again",
        "every start leads with a higher epoch",
        TopicRegistry,
        "_next_term",
        _same_epoch(TopicRegistry._next_term),
        RESTARTS,
    ),
    Mutant(
        "an unanswered change taken for none",
        "a change without an answer is looked up before it is called refused",
        changes,
        "_own_outcome",
        _not_done,
        {"faults": ("reset",), "store_losses": 0.1, **OWNERS},
    ),
)
