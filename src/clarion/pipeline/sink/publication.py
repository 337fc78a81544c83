"""What tasks tell the driver, and what the driver does with it when a batch is complete.

Today a task's messages are visible as soon as the broker has them: at least once. The seam for exactly once is here. A
task would write into a transaction of its own, whose id follows from (query, batch, partition), and leave it open;
`publish` would end all of them and record (query, batch) in the same step, and do nothing if it finds the pair
recorded, because Spark calls it again for a batch whose end it did not survive. Everything that this needs is in
`Share` already.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql.datasource import WriterCommitMessage

log = logging.getLogger("clarion.pipeline")


@dataclass(frozen=True, slots=True)
class WrittenRange:
    """One partition's messages of one task. Other writers' messages may lie between the first and the last."""

    topic: str
    partition: int
    rows: int
    first_offset: int
    last_offset: int


@dataclass(frozen=True)
class Share(WriterCommitMessage):
    """One task's part of a batch. A batch query has neither query id nor batch number."""

    query_id: str | None
    batch_id: int | None
    spark_partition: int
    attempt: int
    written: tuple[WrittenRange, ...]

    @property
    def rows(self) -> int:
        return sum(one.rows for one in self.written)


def publish(shares: Sequence[Share | None], batch_id: int | None = None) -> None:
    """All tasks are done. Their messages are visible already."""
    log.debug("batch %s: %d rows written", batch_id, sum(share.rows for share in shares if share is not None))


def withdraw(shares: Sequence[Share | None], batch_id: int | None = None) -> None:
    """Some task failed. What others wrote stays: it will be written again when the batch is run again."""
    rows = sum(share.rows for share in shares if share is not None)
    if rows:
        log.warning("batch %s failed after %d rows were written; they will be written again", batch_id, rows)
