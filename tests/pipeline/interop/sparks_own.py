"""A driver of its own, because `spark.jars` is decided when a JVM starts: Spark's Kafka connector beside ours.

`python -m tests.pipeline.interop.sparks_own BOOTSTRAP TOPIC FOLDER` reads TOPIC (made and filled by the caller) with
format `kafka` as a batch and as a stream, writes what it read to TOPIC-batch, TOPIC-stream and, through both
connectors, to TOPIC-there and TOPIC-back. Then streams that Spark's connector began go on in ours, with the checkpoint
that it left: one that had ended (TOPIC-moved) and one whose last batch had not (TOPIC-unfinished). Prints what it saw
as JSON.
"""

import json
import sys
from pathlib import Path

from bench.peers.spark_kafka import spark_jars
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from clarion.pipeline import session

KAFKA, CLARION = "kafka", "clarion"
MESSAGE = ("key", "value", "headers", "partition")


def main(bootstrap: str, topic: str, folder: str) -> None:
    settings = {"spark.jars": spark_jars(), "spark.ui.enabled": "false", "spark.driver.memory": "1g"}
    spark = session(settings, master="local[2,4]", name="interoperability")
    house = House(spark, bootstrap, Path(folder))
    seen = {"batch": rows(house.read(KAFKA, topic)), "some": house.read(KAFKA, topic, **BOUNDS(topic)).count()}
    house.write(KAFKA, house.read(KAFKA, topic), f"{topic}-batch", **{"kafka.compression.type": "lz4"})
    house.stream(KAFKA, topic, KAFKA, f"{topic}-stream")
    house.stream(KAFKA, topic, CLARION, f"{topic}-there")
    house.stream(CLARION, f"{topic}-there", KAFKA, f"{topic}-back")
    seen |= {each: rows(house.read(CLARION, f"{topic}-{each}")) for each in ("batch", "stream", "there", "back")}
    seen |= {each: move(house, topic, each) for each in ("moved", "unfinished")}
    seen["columns"] = [house.read(each, topic).dtypes for each in (KAFKA, CLARION)]
    print(json.dumps(seen))
    spark.stop()


def move(house: "House", topic: str, copy: str) -> list[list]:
    """Half of a topic is copied by one connector, the rest by the other, with the same checkpoint."""
    source, target = f"{topic}-{copy}-from", f"{topic}-{copy}"
    house.write(CLARION, house.read(CLARION, topic), source)
    house.stream(KAFKA, source, KAFKA, target)
    if copy == "unfinished":
        max((house.folder / target / "commits").glob("[0-9]*"), key=lambda each: int(each.name)).unlink()
    house.write(CLARION, house.read(CLARION, topic), source)
    house.stream(CLARION, source, KAFKA, target)
    return rows(house.read(CLARION, target))


def BOUNDS(topic: str) -> dict[str, str]:
    """Offsets as both connectors write them: partition 0 from 5 to 9, of partition 1 all but the first."""
    return {
        "startingOffsets": json.dumps({topic: {"0": 5, "1": 1}}),
        "endingOffsets": json.dumps({topic: {"0": 9, "1": -1}}),
    }


class House:
    def __init__(self, spark: SparkSession, bootstrap: str, folder: Path) -> None:
        self._spark, self.folder = spark, folder
        self._broker = {"kafka.bootstrap.servers": bootstrap}

    def read(self, connector: str, topic: str, **options: str) -> DataFrame:
        reader = self._spark.read.format(connector).options(**self._broker, subscribe=topic, includeHeaders="true")
        return reader.options(**options).load()

    def write(self, connector: str, df: DataFrame, topic: str, **options: str) -> None:
        writer = df.select(*MESSAGE).write.format(connector).options(**self._broker, topic=topic, **options)
        writer.mode("append").save()

    def stream(self, reader: str, source: str, writer: str, target: str) -> None:
        """Everything that is there, in several micro-batches."""
        df = (
            self._spark.readStream.format(reader)
            .options(**self._broker, subscribe=source, includeHeaders="true")
            .options(startingOffsets="earliest", maxOffsetsPerTrigger="25")
            .load()
        )
        query = (
            df.select(*MESSAGE)
            .writeStream.format(writer)
            .options(**self._broker, topic=target, checkpointLocation=str(self.folder / target))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()


def rows(df: DataFrame) -> list[list]:
    """Text of key and value, headers, partition and offset, in the order of partitions and offsets."""
    headers = F.transform("headers", lambda one: F.concat(one["key"], F.lit("="), one["value"].cast("string")))
    texts = df.select(
        F.col("key").cast("string"), F.col("value").cast("string"), headers.alias("headers"), "partition", "offset"
    )
    return [list(row) for row in texts.orderBy("partition", "offset").collect()]


if __name__ == "__main__":
    main(*sys.argv[1:])
