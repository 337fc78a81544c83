"""Stream readers without Spark: asked as its driver asks them, read from as its executors do."""

import pickle
from collections.abc import Callable
from typing import Any

from confluent_kafka.admin import AdminClient, NewPartitions

from clarion.pipeline.source.stream_reader import StreamReader

Readers = Callable[..., StreamReader]


def read(reader: StreamReader, start: dict, end: dict) -> list[bytes]:
    """What executors read: each task by a copy of the reader that has been through a pickle."""
    copy = pickle.loads(pickle.dumps(reader))
    tasks = [pickle.loads(pickle.dumps(one)) for one in reader.partitions(start, end)]
    batches = [one for task in tasks for one in copy.read(task)]
    rows = [row for one in batches for row in one.select(["topic", "partition", "offset", "value"]).to_pylist()]
    return [row["value"] for row in sorted(rows, key=lambda row: (row["topic"], row["partition"], row["offset"]))]


def latest(reader: StreamReader, start: dict, limit: Any = None) -> dict:
    return reader.latestOffset(start, limit or reader.getDefaultReadLimit())


def add_partition(bootstrap: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_partitions([NewPartitions(topic, 2)])[topic].result(15)


def offsets(document: dict, topic: str) -> dict[str, int]:
    return {name: value for name, value in document[topic].items() if name not in ("id", "epochs")}
