"""Where things go wrong: a broker, two pipelines on one topic (into another topic, into a table), and the faults.

Pipelines are played by the runner, as `clarion pipeline run` does. What they have done is read from where they leave it
(the checkpoint, the target topic through librdkafka, the table through delta-rs), never from what they say.
"""

import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from pyspark.sql import SparkSession

from clarion.pipeline import archive, pipeline, topic
from clarion.pipeline.definition import ONCE, STREAM, Pipeline, Plan
from clarion.pipeline.progress import PipelineProgress
from clarion.pipeline.runner import Runner
from clarion.pipeline.state_files import StateFolder
from tests.pipeline import topics
from tests.servers import ClarionProcess
from tests.waiting import wait_for

SOURCE, TARGET = "logs", "copies"
IN_BOTH = pytest.mark.parametrize("scene", ["folder", "store"], indirect=True)
SMALL_BATCHES = {"maxOffsetsPerTrigger": "200"}
# A broker that says nothing for a second is taken for lost, so that a freeze of a few seconds is a long one.
IMPATIENT = {"request.timeout.ms": "1000"}
WAIT_SECONDS_MAX = 400  # a batch takes 0.1 s on a quiet machine, a killed executor minutes to be back on a busy one


class Scene:
    def __init__(
        self,
        broker: ClarionProcess,
        folder: Path,
        spark: Callable[[], SparkSession],
        lake: str,
        store: Mapping[str, str] | None = None,
    ) -> None:
        """`store`: how to reach the object store that the lake lies in, if it does."""
        self.broker = broker
        self.state = folder / "state"
        self.lake = lake
        self.store = dict(store or {})
        self._spark = spark

    # Topics

    def fill(self, count: int, first: int = 0) -> list[bytes]:
        """Numbered messages in both partitions of the source, which is made if need be; returns all that were sent."""
        if not first:
            topics.create(self.broker.bootstrap, SOURCE, 2)
            topics.create(self.broker.bootstrap, TARGET, 2)
        values = topics.numbered(first + count)
        for partition in (0, 1):
            topics.fill(self.broker.bootstrap, SOURCE, values[first:][partition::2], partition)
        return values

    def copied(self) -> list[bytes]:
        return sorted(topics.contents(self.broker.bootstrap, TARGET))

    def recreate_source(self) -> None:
        topics.delete(self.broker.bootstrap, SOURCE)
        topics.create(self.broker.bootstrap, SOURCE, 2)

    def set_retention(self, retention_ms: int) -> None:
        wanted = {"retention.ms": str(retention_ms), "clarion.retention.grace.ms": "0"}
        entries = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in wanted.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, SOURCE, incremental_configs=entries)
        admin = AdminClient({"bootstrap.servers": self.broker.bootstrap})
        admin.incremental_alter_configs([resource])[resource].result(15)

    def ends(self) -> list[tuple[int, int]]:
        """The first and the next offset of every partition of the source."""
        reader = Consumer({"bootstrap.servers": self.broker.bootstrap, "group.id": "ends"})
        found = [reader.get_watermark_offsets(TopicPartition(SOURCE, each), timeout=15) for each in (0, 1)]
        reader.close()
        return found

    # Pipelines

    def copying(self, **options: str) -> Pipeline:
        reads = topic(SOURCE, options={**SMALL_BATCHES, **IMPATIENT, **options})
        return pipeline(reads=reads, writes=topic(TARGET, options=IMPATIENT), name="copying")(lambda rows: rows)

    def archiving(self, **options: str) -> Pipeline:
        options = {**SMALL_BATCHES, **IMPATIENT, **options}
        return archive(SOURCE, self.lake, name="archiving", trigger=None, options=options)

    def archived(self) -> list[bytes]:
        return sorted(row["value"] for row in self.rows_at(self.lake))

    def rows_at(self, table: str) -> list[dict[str, Any]]:
        from deltalake import DeltaTable

        return DeltaTable(table, storage_options=self.store or None).to_pyarrow_table().to_pylist()

    @contextmanager
    def playing(self, *pipelines: Pipeline) -> Iterator[Runner]:
        """They run as streams within the block, and are stopped at its end."""
        spark = self._spark()
        runner = self._runner(pipelines, STREAM)
        thread = Thread(target=runner.run, args=(lambda config: of_this_thread(spark),), daemon=True)
        thread.start()
        try:
            yield runner
        finally:
            runner.stop()
            thread.join(WAIT_SECONDS_MAX)

    def run_once(self, played: Pipeline) -> PipelineProgress:
        """Read what there is, then end; the next run goes on."""
        runner = self._runner([played], ONCE)
        runner.run(lambda config: self._spark())
        return runner.progresses[0]

    def run_well(self, played: Pipeline) -> None:
        ended = self.run_once(played)
        assert ended.state == "ended", ended.last_error

    def _runner(self, pipelines: Sequence[Pipeline], how: str) -> Runner:
        plan = Plan(self.broker.bootstrap, how, state_dir=self.state, must_wait=False)
        return Runner(pipelines, plan, lambda progresses: None)

    # How far they are

    def wait_for_batches(self, played: Pipeline, more: int) -> None:
        goal = last_commit(self.checkpoint(played)) + more
        self._wait(played, lambda: last_commit(self.checkpoint(played)) >= goal, f"batch {goal} of {played.name}")

    def wait_until_read(self, played: Pipeline, messages: int) -> None:
        self._wait(
            played, lambda: rows_done(self.checkpoint(played)) >= messages, f"{messages} messages read by {played.name}"
        )

    def checkpoint(self, played: Pipeline) -> Path:
        return StateFolder(self.state, played.name).checkpoint

    def _wait(self, played: Pipeline, condition: Callable[[], bool], what: str) -> None:
        def has_happened() -> bool:
            status = StateFolder(self.state, played.name).read_status()
            assert status.get("state") not in ("failed", "ended"), f"waiting for {what}: {status}"
            return condition()

        wait_for(has_happened, seconds=WAIT_SECONDS_MAX, what=what)

    # Faults

    def freeze_broker(self, seconds: float) -> None:
        """It is there and says nothing: a long pause, a machine that swaps, a network that drops everything."""
        os.kill(self.broker.pid, signal.SIGSTOP)
        try:
            time.sleep(seconds)
        finally:
            os.kill(self.broker.pid, signal.SIGCONT)


def of_this_thread(spark: SparkSession) -> SparkSession:
    """Spark finds formats by the session of the thread that asks."""
    SparkSession._get_j_spark_session_class(spark._jvm).setActiveSession(spark._jsparkSession)
    return spark


def last_commit(checkpoint: Path) -> int:
    """The last batch that is done; -1 if there is none."""
    return max((int(each) for each in _numbers(checkpoint / "commits")), default=-1)


def last_plan(checkpoint: Path) -> int:
    """The last batch whose offsets are decided."""
    return max((int(each) for each in _numbers(checkpoint / "offsets")), default=-1)


def query_id(checkpoint: Path) -> str:
    return str(json.loads((checkpoint / "metadata").read_text())["id"])


def rows_done(checkpoint: Path) -> int:
    """How many messages the batches that are done have read, counted from offset 0."""
    number = last_commit(checkpoint)
    if number < 0:
        return 0
    offsets = json.loads((checkpoint / "offsets" / str(number)).read_text().splitlines()[-1])
    return sum(place for name, place in offsets[SOURCE].items() if name not in ("id", "epochs"))


def _numbers(folder: Path) -> list[str]:
    try:
        return [each for each in os.listdir(folder) if each.isdigit()]
    except FileNotFoundError:
        return []
