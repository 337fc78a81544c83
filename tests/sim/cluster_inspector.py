"""Looks inside the brokers of a cluster again and again: what must hold between replicas at every moment."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from clarion.cluster.schema import PARTITIONS, PartitionState, read_partition, split_partition_key
from clarion.cluster.simulated_store import SimulatedService
from clarion.model.ids import TopicId
from clarion.replication import Partition
from tests.sim.clients import Violation
from tests.sim.machine import Machine

INTERVAL_SECONDS = 0.5


class ClusterInspector:
    def __init__(self, registry: SimulatedService, machines: dict[int, Machine]) -> None:
        self._registry = registry
        self._machines = machines

    async def watch(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL_SECONDS)
            self.look()

    def look(self) -> None:
        for topic_id, index, state in self._states():
            replicas = {one: found for one in state.replicas if (found := self._replica(one, topic_id, index))}
            if replicas:
                wrong = self._wrong_with(state, replicas)
                if wrong:
                    raise Violation(f"{next(iter(replicas.values())).tp}: {wrong}; {state}")

    def _states(self) -> Iterator[tuple[TopicId, int, PartitionState]]:
        for entry in self._registry.range(PARTITIONS).entries:
            yield *split_partition_key(entry.key), read_partition(entry.value, entry.mod_revision)

    def _replica(self, number: int, topic_id: TopicId, index: int) -> Partition | None:
        """As far as it is there, and what nobody has damaged."""
        machine = self._machines[number]
        if not machine.is_serving or machine.server is None:
            return None
        found = machine.server.broker.partitions.find(topic_id, index)
        return None if found is None or found.is_gone or found.unsound else found

    def _wrong_with(self, state: PartitionState, replicas: dict[int, Partition]) -> str:
        leaders = [one.leader_epoch for one in replicas.values() if one.is_leader]
        if len(leaders) > len(set(leaders)):
            return f"two lead in one of the epochs {leaders}"
        committed = max(one.high_watermark.offset for one in replicas.values())
        for number, one in replicas.items():
            if number in state.in_sync and self._is_its_life(state, number) and one.next_offset < committed:
                return f"broker {number} is in sync and ends at {one.next_offset}; {committed} is committed"
        if any(one.settings.is_compacted or one.start_offset for one in replicas.values()):
            return ""  # each does that for itself
        contents = {number: self._committed(number, one) for number, one in replicas.items()}
        longest = max(contents.values(), key=len)
        for number, content in contents.items():
            if longest[: len(content)] != content:
                return f"broker {number} has something else below its watermark than another one"
        return ""

    def _is_its_life(self, state: PartitionState, number: int) -> bool:
        """It is known to have had everything in this very life of it."""
        server = self._machines[number].server
        member = server.node.membership if server is not None and server.node is not None else None
        return member is not None and member.epoch == state.life_of(number)

    def _committed(self, number: int, one: Partition) -> bytes:
        """All below the watermark. Where one file ends and the next begins is every broker's own matter."""
        drive, contents = self._machines[number].drive, []
        end = one.high_watermark
        for segment in one.log.segments:
            if segment.base_offset < end.segment:
                contents.append(drive.content(segment.path))
            elif segment.base_offset == end.segment:
                contents.append(drive.content(segment.path)[: end.position])
        return b"".join(contents)
