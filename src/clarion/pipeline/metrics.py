"""Pipelines for Prometheus: the numbers of the live view under `clarion_pipeline_…`, on a port of their own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from clarion.pipeline.progress import PipelineProgress

Number = Callable[[PipelineProgress], float | None]

COUNTERS: dict[str, tuple[str, Number]] = {
    "rows_read": ("Rows read from the sources.", lambda one: one.rows_in),
    "rows_written": ("Rows given to the targets.", lambda one: one.rows_out),
    "rows_quarantined": ("Bad records that did not reach the function.", lambda one: one.rows_bad),
    "rows_late": ("Rows that came after the watermark had passed them.", lambda one: one.rows_late),
    "batches": ("Micro-batches finished.", lambda one: one.batches),
    "restarts": ("Times it was started again after a failure.", lambda one: one.restarts),
}
GAUGES: dict[str, tuple[str, Number]] = {
    "up": ("1 while the pipeline runs.", lambda one: float(one.state == "running")),
    "failed": ("1 after the pipeline has failed.", lambda one: float(one.state == "failed")),
    "lag_messages": ("Messages in the topics that it has not read.", lambda one: one.lag),
    "lag_bytes": ("About how many bytes those messages have.", lambda one: one.lag_bytes),
    "lag_seconds": ("Since when the oldest of them waits.", lambda one: one.lag_seconds),
    "batch_duration_seconds": (
        "Time the last micro-batch took.",
        lambda one: one.last.batch_ms / 1000 if one.last else None,
    ),
    "watermark_timestamp_seconds": ("Event time before which rows come too late.", lambda one: _watermark(one)),
    "state_rows": ("Rows kept as state.", lambda one: one.last.state_rows if one.last else None),
    "state_bytes": ("Memory that the state takes.", lambda one: one.last.state_bytes if one.last else None),
}


@contextmanager
def served(address: tuple[str, int], progresses: Sequence[PipelineProgress]) -> Iterator[int]:
    """Answer GET /metrics within the block; gives the port."""
    registry = CollectorRegistry()
    registry.register(_Pipelines(progresses))
    server, thread = start_http_server(address[1], address[0], registry)
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Pipelines:
    def __init__(self, progresses: Sequence[PipelineProgress]) -> None:
        self._progresses = progresses

    def collect(self) -> Iterable[Any]:
        for kind, table in ((CounterMetricFamily, COUNTERS), (GaugeMetricFamily, GAUGES)):
            for name, (what, number) in table.items():
                family = kind(f"clarion_pipeline_{name}", what, labels=["pipeline"])
                for each in self._progresses:
                    if (value := number(each)) is not None:
                        family.add_metric([each.name], value)
                yield family
        yield self._rates()
        yield from self._partitions()
        yield from self._tables()

    def _partitions(self) -> Iterable[Any]:
        for unit, what in (
            ("messages", "Messages of a partition that it has not read."),
            ("bytes", "About how many bytes they have."),
            ("seconds", "Since when the oldest of them waits."),
        ):
            family = GaugeMetricFamily(
                f"clarion_pipeline_partition_lag_{unit}", what, labels=["pipeline", "topic", "partition"]
            )
            for each in self._progresses:
                for lag in each.lags:
                    if (value := getattr(lag, unit)) is not None:
                        family.add_metric([each.name, lag.topic, str(lag.partition)], value)
            yield family

    def _tables(self) -> Iterable[Any]:
        behind = GaugeMetricFamily(
            "clarion_pipeline_table_behind_seconds",
            "Age of the oldest message that a table does not hold yet.",
            labels=["pipeline", "table"],
        )
        written = GaugeMetricFamily(
            "clarion_pipeline_table_written_timestamp_seconds",
            "When a table last got rows.",
            labels=["pipeline", "table"],
        )
        for each in self._progresses:
            for table in each.tables:
                if each.lag_seconds is not None:
                    behind.add_metric([each.name, table], each.lag_seconds)
                if each.written_ms is not None:
                    written.add_metric([each.name, table], each.written_ms / 1000)
        yield from (behind, written)

    def _rates(self) -> Any:
        family = GaugeMetricFamily(
            "clarion_pipeline_rows_per_second", "Rows over the last ten seconds.", labels=["pipeline", "direction"]
        )
        for each in self._progresses:
            for direction, rate in zip(("in", "out"), each.rates(time.monotonic()), strict=True):
                family.add_metric([each.name, direction], rate)
        return family


def _watermark(one: PipelineProgress) -> float | None:
    if one.last is None or one.last.watermark is None:
        return None
    return datetime.fromisoformat(one.last.watermark).timestamp()
