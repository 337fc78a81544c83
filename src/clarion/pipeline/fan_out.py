"""One streaming query into several targets: every micro-batch goes to each of them in turn, computed once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from threading import Event
from typing import TYPE_CHECKING, Any

from clarion.pipeline.definition import MicroBatch, Run, Target

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

_START_SECONDS_MAX = 60.0  # the first batch may come before `start` has returned and the query's id is known


def start_fan_out(
    df: DataFrame,
    targets: Sequence[Target],
    run: Run,
    *,
    name: str,
    checkpoint: str,
    trigger: Mapping[str, Any],
    output_mode: str,
) -> StreamingQuery:
    fan = FanOut(targets, run)
    writer = df.writeStream.foreachBatch(fan).option("checkpointLocation", checkpoint)
    writer = writer.outputMode(output_mode).queryName(name)
    query = (writer.trigger(**trigger) if trigger else writer).start()
    fan.belongs_to(str(query.id))
    return query


class FanOut:
    """What Spark calls with every micro-batch. If one target fails, the batch fails and comes again, to all of them."""

    def __init__(self, targets: Sequence[Target], run: Run) -> None:
        self._targets = targets
        self._run = run
        self._query_id = ""
        self._is_known = Event()

    def belongs_to(self, query_id: str) -> None:
        self._query_id = query_id
        self._is_known.set()

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        if not self._is_known.wait(_START_SECONDS_MAX):
            raise RuntimeError("the query did not start")
        # Without this the topic would be read, parsed and quarantined once per target.
        df.persist()
        try:
            for each in self._targets:
                each.write(df, self._run, MicroBatch(self._query_id, batch_id))
        finally:
            df.unpersist()
