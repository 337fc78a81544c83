"""A driver on a cluster: `python -m tests.pipeline.cluster.tour MASTER BOOTSTRAP TOPIC FOLDER`.

It goes once through everything that the connector does, with nothing said about the cluster but its name: TOPIC is read
as a batch, copied to TOPIC-batch by a batch and to TOPIC-stream by a stream, and archived in FOLDER/lake. Its executors
are bare: Python, pyspark, pyarrow, numpy, and whatever was sent to them. Prints what it saw as JSON.
"""

import json
import os
import sys
from pathlib import Path

from pyspark import cloudpickle
from pyspark.sql import SparkSession

from clarion.pipeline import archive, session
from clarion.pipeline.definition import ONCE, Plan
from clarion.pipeline.runner import Runner
from tests.pipeline.connector import bare_workers

# Planners run beside the driver, where the package is installed; only executors, for whom a worker sets this variable,
# do without.
PYTHON = """#!/bin/sh
if [ -n "$SPARK_EXECUTOR_DIRS" ]; then
  export PYTHONPATH="$PYTHONPATH:{site}"
  exec {python} -S "$@"
fi
exec {python} "$@"
"""
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.memory": "1g",
    "spark.executor.memory": "1g",
    "spark.executorEnv.SPARK_LOCAL_IP": "127.0.0.1",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
}


def main(master: str, bootstrap: str, topic: str, folder: str) -> None:
    os.environ["PYSPARK_PYTHON"] = str(python_of_the_cluster(Path(folder)))
    spark = session(SETTINGS, master=master, name="tour")
    broker = {"bootstrap.servers": bootstrap}
    messages = spark.read.format("clarion").options(**broker, subscribe=topic, minPartitions="4").load()
    messages.select("key", "value").write.format("clarion").options(**broker, topic=f"{topic}-batch").mode(
        "append"
    ).save()
    stream(spark, broker, topic, Path(folder))
    seen = {
        "rows": messages.count(),
        "archive": archived(spark, bootstrap, topic, Path(folder)),
        "executors": len(spark.sparkContext._jsc.sc().statusTracker().getExecutorInfos()) - 1,
        "imported": imported(spark),
    }
    print(json.dumps(seen), flush=True)
    spark.stop()


def python_of_the_cluster(folder: Path) -> Path:
    bare_workers.bare_python(folder / "bare")
    python = folder / "python"
    python.write_text(PYTHON.format(site=folder / "bare" / "site", python=sys.executable))
    python.chmod(0o755)
    return python


def stream(spark: SparkSession, broker: dict[str, str], topic: str, folder: Path) -> None:
    messages = spark.readStream.format("clarion").options(**broker, subscribe=topic)
    messages = messages.options(startingOffsets="earliest", maxOffsetsPerTrigger="200").load()
    writer = messages.select("key", "value").writeStream.format("clarion").options(**broker, topic=f"{topic}-stream")
    query = writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()


def archived(spark: SparkSession, bootstrap: str, topic: str, folder: Path) -> str:
    """How the archive ended."""
    plan = Plan(bootstrap, ONCE, state_dir=folder / "state", must_wait=False)
    runner = Runner([archive(topic, str(folder / "lake"))], plan, lambda progresses: None)
    runner.run(lambda config: spark)
    return runner.progresses[0].last_error or runner.progresses[0].state


def imported(spark: SparkSession) -> list[list[str]]:
    """What an executor has, and from where."""
    cloudpickle.register_pickle_by_value(bare_workers)  # executors have no tests
    return json.loads(spark.sparkContext.parallelize([0], 1).map(bare_workers.what_can_be_imported).first())


if __name__ == "__main__":
    main(*sys.argv[1:])
