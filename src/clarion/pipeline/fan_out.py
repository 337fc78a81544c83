"""One streaming query into several targets: every micro-batch goes to each of them in turn, computed once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from clarion.pipeline.definition import MicroBatch, Run, Target

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery


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
    writer = df.writeStream.foreachBatch(FanOut(targets, run)).option("checkpointLocation", checkpoint)
    writer = writer.outputMode(output_mode).queryName(name)
    return (writer.trigger(**trigger) if trigger else writer).start()


class FanOut:
    """What Spark calls with every micro-batch. If one target fails, the batch fails and comes again, to all of them."""

    def __init__(self, targets: Sequence[Target], run: Run) -> None:
        self._targets = targets
        self._run = run

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        from clarion.pipeline.lake.tables import query_id_of

        batch = MicroBatch(query_id_of(df), batch_id)
        # Without this the topic would be read, parsed and quarantined once per target.
        df.persist()
        try:
            for each in self._targets:
                each.write(df, self._run, batch)
        finally:
            df.unpersist()
