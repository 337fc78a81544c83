"""Queries that a pipeline becomes beside its target's own (a batch, several targets), and rows counted on their way."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import TYPE_CHECKING

from clarion.pipeline.definition import MicroBatch, PipelineTarget, RunSettings
from clarion.pipeline.spark_session import make_active

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


class BatchQuery:
    """A batch with a streaming query's face (`isActive`, `exception()`, `stop()`), so that the runner knows one thing:
    writes a static DataFrame to every target, in a thread of its own."""

    def __init__(self, rows: DataFrame, targets: Sequence[PipelineTarget], run: RunSettings) -> None:
        from pyspark import InheritableThread

        self._rows = rows
        self._targets = targets
        self._run = run
        self._tag = f"clarion-{run.name}"
        self._error: Exception | None = None
        self._thread = InheritableThread(target=self._write, daemon=True)
        self._thread.start()

    @property
    def isActive(self) -> bool:
        alive: bool = self._thread.is_alive()
        return alive

    def exception(self) -> Exception | None:
        return self._error

    def stop(self) -> None:
        self._rows.sparkSession.interruptTag(self._tag)
        self._thread.join()
        self._error = None  # it was asked for

    def _write(self) -> None:
        spark = self._rows.sparkSession
        make_active(spark)
        spark.addTag(self._tag)
        is_shared = len(self._targets) > 1
        rows = self._rows.persist() if is_shared else self._rows
        try:
            for each in self._targets:
                each.write(rows, self._run)
        except Exception as error:  # a thread must not die in silence: whoever asks how the query is hears of it
            self._error = error
        finally:
            if is_shared:
                rows.unpersist()


class FanOut:
    """One streaming query into several targets: Spark calls this with every micro-batch, which goes to each of them in
    turn, computed once. If one target fails, the batch fails and comes again, to all of them."""

    def __init__(self, targets: Sequence[PipelineTarget], run: RunSettings, checkpoint: str) -> None:
        self._targets = targets
        self._run = run
        self._checkpoint = checkpoint

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        from clarion.pipeline.lake.checkpoints import flush_offsets
        from clarion.pipeline.lake.tables import query_id_of

        flush_offsets(self._checkpoint, batch_id)
        batch = MicroBatch(query_id_of(df), batch_id)
        # Without this the topic would be read, parsed and quarantined once per target.
        df.persist()
        try:
            for each in self._targets:
                each.write(df, self._run, batch)
        finally:
            df.unpersist()


_numbers = count(1)  # one plan may count the same thing in two places (a join of two topics): names must differ


def observed(df: DataFrame, name: str, counted: Column, run: RunSettings) -> DataFrame:
    """The same rows; a stream's progress reports carry the count, a batch leaves it in `run.observations`."""
    unique = f"{name}_{next(_numbers)}"
    if df.isStreaming:
        return df.observe(unique, counted.alias("count"))
    from pyspark.sql import Observation

    observation = Observation(unique)
    run.observations[unique] = observation
    return df.observe(observation, counted.alias("count"))
