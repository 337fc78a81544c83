"""The words the stories are told in: short for the requests that every one of them makes."""

import struct
import time
from typing import Any

from clarion.wire.records import encode_batch
from tests.raw_client import RawClient
from tests.waiting import wait_for

COORDINATOR_ERRORS = (14, 15, 16)  # loading, not available, not here: ask again


def create_topic(raw: RawClient, name: str, partitions: int = 1, **config: str) -> None:
    configs = [{"name": key.replace("_", "."), "value": value} for key, value in config.items()]
    wanted = {
        "name": name,
        "num_partitions": partitions,
        "replication_factor": 1,
        "assignments": [],
        "configs": configs,
    }
    (answer,) = raw.ask("create_topics", 4, topics=[wanted], timeout=10_000, validate_only=False).topics
    assert answer.error_code == 0, answer
    for partition in range(partitions):  # Kafka answers before its partitions can be written to
        wait_for(lambda p=partition: list_offsets(raw, 5, name, -1, p).error_code == 0, what=f"{name}-{partition}")


def find_coordinator(raw: RawClient, group: str) -> None:
    """Wait until there is one; Kafka creates the offsets topic on the first question."""
    wait_for(lambda: raw.ask("find_coordinator", 0, key=group).error_code == 0, what="a coordinator")
    ready = {"name": "nothing", "partition_indexes": [0]}
    wait_for(
        lambda: raw.ask("offset_fetch", 3, group_id=group, topics=[ready]).error_code not in COORDINATOR_ERRORS,
        what="a coordinator that has loaded its groups",
    )


def batch(count: int, compression: int = 0) -> bytes:
    return bytes(
        encode_batch(
            [(None, b"value %d" % n, (), int(time.time() * 1000)) for n in range(count)], compression=compression
        )
    )


def topic_data(topic: str, records: bytes, partition: int = 0) -> list[dict]:
    return [{"name": topic, "partition_data": [{"index": partition, "records": records}]}]


def produce(raw: RawClient, topic: str, records: bytes, partition: int = 0, version: int = 8) -> Any:
    data = topic_data(topic, records, partition)
    answer = raw.ask("produce", version, transactional_id=None, acks=-1, timeout=5000, topic_data=data)
    result = answer.responses[0].partition_responses[0]
    assert result.error_code == 0, result
    return result


def fetch_values(
    topic: str, partitions: list[dict], *, max_wait: int = 500, min_bytes: int = 1, max_bytes: int = 10_000_000
) -> dict:
    return {
        "replica_id": -1, "max_wait": max_wait, "min_bytes": min_bytes, "max_bytes": max_bytes, "isolation_level": 0,
        "session_id": 0, "session_epoch": -1, "topics": [{"topic": topic, "partitions": partitions}],
        "forgotten_topics_data": [], "rack_id": "",
    }  # fmt: skip


def send_fetch(
    raw: RawClient, version: int, topic: str, offset: int, *, partition_max_bytes: int = 1_000_000, **limits: int
) -> int:
    wanted = [{"partition": 0, "fetch_offset": offset, "partition_max_bytes": partition_max_bytes}]
    return raw.send("fetch", version, **fetch_values(topic, wanted, **limits))


def fetch(raw: RawClient, version: int, topic: str, offset: int, **limits: int) -> Any:
    send_fetch(raw, version, topic, offset, **limits)
    partition = raw.receive()[1].responses[0].partitions[0]
    assert partition.error_code == 0, partition
    return partition


def list_offsets(raw: RawClient, version: int, topic: str, timestamp: int, partition: int = 0) -> Any:
    wanted = [{"name": topic, "partitions": [{"partition_index": partition, "timestamp": timestamp}]}]
    return raw.ask("list_offsets", version, replica_id=-1, isolation_level=0, topics=wanted).topics[0].partitions[0]


def end_offset(raw: RawClient, topic: str) -> int:
    return list_offsets(raw, 5, topic, -1).offset


def base_offsets(records: bytes | None) -> list[int]:
    """The base offset of each whole batch."""
    found, at = [], 0
    while records and at + 12 <= len(records):
        base, size = struct.unpack_from(">qi", records, at)
        if at + 12 + size <= len(records):
            found.append(base)
        at += 12 + size
    return found


def ranges(answer: Any) -> dict[int, tuple[int, int]]:
    return {api.api_key: (api.min_version, api.max_version) for api in answer.api_keys}
