"""Looks inside the running broker again and again: what its own documentation says must hold at every moment."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from uuid import UUID

from clarion.model.ids import LogPosition
from clarion.replication import Partition
from tests.sim.clients import Violation
from tests.sim.machine import Machine

INTERVAL_SECONDS = 0.05


class Inspector:
    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._boot = 0
        self._epochs: dict[tuple[UUID, int], tuple[int, int]] = {}  # by partition: the last life that led it, its epoch
        self._watermarks: dict[Partition, LogPosition] = {}  # as they were last seen, in this life of the broker

    async def watch(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL_SECONDS)
            for partition in self._partitions():
                wrong = self._wrong_with(partition)
                if wrong:
                    raise Violation(f"inside {partition.tp}: {wrong}")

    def _partitions(self) -> Iterator[Partition]:
        machine = self._machine
        if self._boot != machine.boots:
            self._boot = machine.boots
            self._watermarks.clear()
        broker = getattr(machine.server, "broker", None)  # not there yet while it starts
        if machine.is_up and broker is not None:
            yield from broker.partitions

    def _compare_epoch(self, partition: Partition) -> str:
        key, epoch = (partition.topic_id, partition.tp.partition), partition.leader_epoch
        boot, before = self._epochs.get(key, (0, -1))
        self._epochs[key] = (self._boot, epoch)
        if self._boot != boot and epoch <= before:
            return f"a start leads with epoch {epoch}, and one before it with {before}"
        return ""

    def _wrong_with(self, partition: Partition) -> str:
        log, watermark = partition.log, partition.high_watermark
        before = self._watermarks.get(partition, watermark)
        self._watermarks[partition] = watermark
        if watermark.offset < before.offset:
            return f"the watermark fell from {before} to {watermark}"
        if not log.start_offset <= watermark.offset <= log.next_offset:
            return f"start {log.start_offset}, watermark {watermark.offset}, end {log.next_offset}"
        if log.flushed.offset > log.next_offset:
            return f"flushed up to {log.flushed}, and it ends at {log.end}"
        if partition.settings.is_durable and watermark.offset > log.flushed.offset:
            return f"the watermark {watermark} is past what was flushed, {log.flushed}"
        if log.epochs.latest > partition.leader_epoch:
            return f"it holds epoch {log.epochs.latest}, and its leader's is {partition.leader_epoch}"
        return self._compare_epoch(partition)
