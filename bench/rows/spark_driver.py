"""One Spark with one connector, in a process of its own: a job per line in JSON on stdin, its answer on stdout.

    python -m bench.rows.spark_driver clarion|kafka BOOTSTRAP FOLDER

`clarion` runs in `clarion.pipeline.session()`; `kafka` is Spark's own connector in a plain session, as its
documentation starts one, or (job setting `is_tuned`) with the same place for checkpoints as ours.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

COMMON = {
    "spark.ui.enabled": "false",
    "spark.driver.memory": "2g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.showConsoleProgress": "false",
}
_FILE_SYSTEM = "fs.AbstractFileSystem.file.impl"
_WITHOUT_CHECKSUMS = "org.apache.hadoop.fs.local.RawLocalFs"
_STREAM_WITHIN_S = 150
_FIRST_BATCHES = 2  # of a stream, left out of its figures: planning and compiling


class Driver:
    """The jobs; every public method is one."""

    def __init__(self, connector: str, bootstrap: str, folder: Path) -> None:
        self._connector = connector
        self._folder = folder
        self._spark = _clarion_session() if connector == "clarion" else _kafka_session()
        self._broker = {"kafka.bootstrap.servers": bootstrap}
        self._bootstrap = bootstrap
        self._copying: StreamingQuery | None = None

    def hello(self) -> dict[str, Any]:
        return {"version": self._spark.version}

    def count(self, topic: str) -> dict[str, float]:
        """For checking, and for warming up."""
        return {"rows": self._read(topic).count()}

    def read(self, topic: str) -> dict[str, float]:
        began = time.perf_counter()
        self._read(topic).write.format("noop").mode("overwrite").save()
        return {"seconds": time.perf_counter() - began}

    def write(self, topic: str, rows: int, value_bytes: int) -> dict[str, float]:
        from pyspark.sql import functions as F

        number = F.col("id").cast("string")
        made = self._spark.range(0, rows, 1, self._cores()).select(
            number.cast("binary").alias("key"), F.rpad(number, value_bytes, "x").cast("binary").alias("value")
        )
        began = time.perf_counter()
        self._write(made, topic)
        return {"seconds": time.perf_counter() - began}

    def copy(self, source: str, target: str, limit: int | None = None) -> dict[str, float]:
        began = time.perf_counter()
        rows = self._read(source).select("key", "value")
        self._write(rows if limit is None else rows.limit(limit), target)
        return {"seconds": time.perf_counter() - began}

    def stream(self, topic: str, rows: int, batches: int) -> dict[str, float]:
        """Everything that is there; rows and seconds of all batches but the first ones."""
        messages = self._read_stream(topic, startingOffsets="earliest", maxOffsetsPerTrigger=str(-(-rows // batches)))
        writer = messages.writeStream.format("noop").option("checkpointLocation", self._checkpoint())
        query = writer.trigger(availableNow=True).start()
        if not query.awaitTermination(_STREAM_WITHIN_S):
            query.stop()
            raise RuntimeError(f"the stream did not end within {_STREAM_WITHIN_S} s")
        done = _batches(query)
        if (seen := sum(each["numInputRows"] for each in done)) != rows:
            raise RuntimeError(f"{seen} of {rows} rows were read")
        counted = done[_FIRST_BATCHES:]
        seconds = sum(each["durationMs"]["triggerExecution"] for each in counted) / 1000
        return {"rows": sum(each["numInputRows"] for each in counted), "seconds": seconds}

    def micro_batches(self, topic: str, rows: int, per_batch: int, idle: str | None = None) -> dict[str, float]:
        """A waiting topic read a little at a time by a stream that is not told to end: milliseconds per batch. `idle`
        is a second source of the same query, in which nothing happens."""
        messages = self._read_stream(topic, startingOffsets="earliest", maxOffsetsPerTrigger=str(per_batch))
        if idle is not None:
            messages = messages.union(self._read_stream(idle, startingOffsets="earliest"))
        query = messages.writeStream.format("noop").option("checkpointLocation", self._checkpoint()).start()
        deadline = time.monotonic() + _STREAM_WITHIN_S
        try:
            while sum(each["numInputRows"] for each in _batches(query)) < rows:
                if time.monotonic() > deadline or query.exception() is not None:
                    raise RuntimeError(f"{topic}: {query.exception() or 'no end of it'}")
                time.sleep(0.05)
            took = [each["durationMs"]["triggerExecution"] for each in _batches(query)[_FIRST_BATCHES:]]
        finally:
            query.stop()
        return {"batch_ms": median(took), "batches": len(took)}

    def start_copying(self, source: str, target: str, is_tuned: bool = False) -> dict[str, float]:
        """Topic to topic as fast as it goes, until `stop_copying`."""
        if is_tuned:
            self._spark.conf.set(_FILE_SYSTEM, _WITHOUT_CHECKSUMS)
        messages = self._read_stream(source, startingOffsets="earliest").select("key", "value")
        writer = messages.writeStream.format(self._connector).options(**self._broker, topic=target)
        self._copying = writer.option("checkpointLocation", self._checkpoint()).start()
        return {}

    def stop_copying(self) -> dict[str, float]:
        if self._copying is not None:
            self._copying.stop()
        if self._connector == "kafka":
            self._spark.conf.unset(_FILE_SYSTEM)
        return {}

    def archive(self, topic: str, path: str) -> dict[str, float]:
        from clarion.pipeline import archive

        seconds = self._run(archive(topic, path, name=f"{topic}-delta", hold=False), "once")
        sizes = [each.stat().st_size for each in Path(path).rglob("*.parquet")]
        return {"seconds": seconds, "files": len(sizes), "file_mb": sum(sizes) / max(1, len(sizes)) / 1e6}

    def replay(self, path: str, topic: str) -> dict[str, float]:
        from clarion.pipeline import replay

        return {"seconds": self._run(replay(path, topic), "batch")}

    def _run(self, pipeline: Any, how: str) -> float:
        """A pipeline from its start to its end, as the command line plays it."""
        from clarion.pipeline.definition import Plan
        from clarion.pipeline.runner import Runner

        state = Path(self._checkpoint())
        ending = {"endingOffsets": "latest"} if how == "batch" else {}
        plan = Plan(self._bootstrap, how, state_dir=state, must_wait=False, ending=ending)
        runner = Runner([pipeline], plan, lambda progresses: None)
        began = time.perf_counter()
        if not runner.run(lambda config: self._spark):
            raise RuntimeError(runner.progresses[0].last_error)
        return time.perf_counter() - began

    def _read(self, topic: str) -> DataFrame:
        return self._spark.read.format(self._connector).options(**self._broker, subscribe=topic).load()

    def _write(self, rows: DataFrame, topic: str) -> None:
        rows.write.format(self._connector).options(**self._broker, topic=topic).mode("append").save()

    def _read_stream(self, topic: str, **options: str) -> DataFrame:
        reader = self._spark.readStream.format(self._connector).options(**self._broker, subscribe=topic)
        return reader.options(**options).load()

    def _checkpoint(self) -> str:
        """A fresh place; the last one goes."""
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)
        return str(self._folder / f"checkpoint-{time.monotonic_ns()}")

    def _cores(self) -> int:
        return int(self._spark.sparkContext.defaultParallelism)


def _clarion_session() -> SparkSession:
    from clarion.pipeline import session

    return session(COMMON, name="bench")


def _kafka_session() -> SparkSession:
    from pyspark.sql import SparkSession

    from bench.peers.spark_kafka import spark_jars
    from clarion.pipeline.java import prepare_java

    prepare_java()
    settings: dict[str, Any] = {**COMMON, "spark.jars": spark_jars()}
    spark = SparkSession.builder.master("local[*]").appName("bench").config(map=settings).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def _batches(query: StreamingQuery) -> list[Any]:
    """The reports of batches that read something."""
    return [each for each in query.recentProgress if each["numInputRows"]]


def main(connector: str, bootstrap: str, folder: str) -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever else Spark has to say goes to the log
    driver = Driver(connector, bootstrap, Path(folder))
    for line in sys.stdin:
        wanted = json.loads(line)
        try:
            answer = getattr(driver, wanted["job"])(**wanted["settings"])
        except Exception as error:
            answer = {"error": (str(error).strip().splitlines() or [type(error).__name__])[0][:300]}
        answers.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
