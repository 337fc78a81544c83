"""A batch with a streaming query's face (`isActive`, `exception()`, `stop()`), so that the runner knows one thing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from clarion.pipeline.definition import Run, Target
from clarion.pipeline.spark_session import make_active

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class BatchQuery:
    """Writes a static DataFrame to every target, in a thread of its own."""

    def __init__(self, rows: DataFrame, targets: Sequence[Target], run: Run) -> None:
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
        except Exception as error:
            self._error = error
        finally:
            if is_shared:
                rows.unpersist()
