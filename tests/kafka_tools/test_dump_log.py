"""kafka-dump-log reads the files: segments, indexes and producer snapshots are Kafka's own format."""

import json
import re
from pathlib import Path

import pytest

from clarion.groups.records import MEMBER_TYPE
from tests.clients.adapters import Confluent
from tests.clients.adapters.model import COMPRESSIONS, Outgoing
from tests.clients.workers import Worker, wait_until_shared
from tests.kafka_tools.conftest import Tool
from tests.servers import ClarionProcess
from tests.waiting import wait_for

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(600)]  # each starts several JVMs

MESSAGES_PER_CODEC = 1000  # 1.3 KB each: more than a segment, before compression
SEGMENT_BYTES = 1_048_576  # Kafka refuses smaller ones


@pytest.fixture
def folder(jars_or_skip: None, own_server, unique: str) -> Path:
    """A partition of several segments, written in every compression by an idempotent producer, after a clean stop."""
    client = Confluent(own_server.bootstrap)
    client.create_topic(unique, config={"segment.bytes": str(SEGMENT_BYTES), "index.interval.bytes": "4096"})
    for compression in (*COMPRESSIONS, "none"):
        messages = [_message(compression, n) for n in range(MESSAGES_PER_CODEC)]
        client.produce(unique, messages, compression=compression, idempotent=True, batch_bytes=16_384)
    own_server.terminate()
    return own_server.data_dir / f"{unique}-0"


def test_kafka_reads_our_segments_indexes_and_snapshots(folder: Path, offline_tool: Tool) -> None:
    segments = sorted(folder.glob("*.log"))
    assert len(segments) > 2, "the test wants several segments"
    dumped = offline_tool("dump-log", "--deep-iteration", "--print-data-log", "--files", _files(segments))
    offsets = [int(n) for n in re.findall(r"^\| offset: (\d+)", dumped, re.MULTILINE)]
    assert offsets == list(range((len(COMPRESSIONS) + 1) * MESSAGES_PER_CODEC))
    assert set(re.findall(r"compresscodec: (\w+)", dumped)) == set(COMPRESSIONS)
    assert "isvalid: false" not in dumped.lower()
    assert "invalid" not in dumped.lower().replace("isvalid", "")
    assert "headerKeys: [codec] key: key 7 payload: gzip 7 " in dumped
    _check_indexes(folder, offline_tool)
    _check_snapshots(folder, offline_tool)


def _check_indexes(folder: Path, offline_tool: Tool) -> None:
    indexes = [*sorted(folder.glob("*.index")), *sorted(folder.glob("*.timeindex"))]
    assert sum(path.stat().st_size for path in indexes) > 0, "the indexes have entries"
    for check in ("--index-sanity-check", "--verify-index-only"):
        said = offline_tool("dump-log", check, "--files", _files(indexes))
        assert "Mismatches" not in said
        assert "Found" not in said
        if check == "--index-sanity-check":
            assert said.count("passed sanity check") + said.count("is empty") == len(indexes)
    entries = offline_tool("dump-log", "--files", _files(indexes[:1]))
    assert re.search(r"offset: \d+ position: \d+", entries), "the first segment's offset index points somewhere"


def _check_snapshots(folder: Path, offline_tool: Tool) -> None:
    snapshots = sorted(folder.glob("*.snapshot"))
    assert snapshots, "a clean stop leaves the producers' state"
    dumped = offline_tool("dump-log", "--files", _files(snapshots[-1:]))
    assert len(re.findall(r"producerId: \d+ producerEpoch: 0 ", dumped)) == len(COMPRESSIONS) + 1, (
        "one producer per codec, and one more"
    )
    assert dumped.count(f"lastSequence: {MESSAGES_PER_CODEC - 1} ") == len(COMPRESSIONS) + 1


def _message(compression: str, n: int) -> Outgoing:
    return Outgoing(
        b"%s %d " % (compression.encode(), n) + b"%016d" % (n * n) * 80,
        b"key %d" % n,
        (("codec", compression.encode()),),
    )


def _files(paths: list[Path]) -> str:
    return ",".join(map(str, paths))


def test_kafka_reads_the_records_of_a_group_with_members_of_both_protocols(
    jars_or_skip: None, own_server, unique: str, offline_tool: Tool
) -> None:
    client = Confluent(own_server.bootstrap)
    client.create_topic(unique, 2)
    classic = Worker(lambda: client.member(unique, [unique], **{"partition.assignment.strategy": "range"}))
    wait_until_shared([classic], {(unique, 0), (unique, 1)})
    modern = Worker(lambda: client.member(unique, [unique], **{"group.protocol": "consumer"}))
    wait_until_shared([classic, modern], {(unique, 0), (unique, 1)})
    for worker in (modern, classic):
        worker.leave()
    own_server.terminate()
    segments = [path for path in own_server.data_dir.glob("__consumer_offsets-*/*.log") if path.stat().st_size]
    dumped = offline_tool("dump-log", "--offsets-decoder", "--files", _files(segments))
    members = [
        json.loads(value)["data"]
        for key, value in re.findall(r"key: (\{.*\}) payload: (\{.*\})$", dumped, re.MULTILINE)
        if json.loads(key)["type"] == str(MEMBER_TYPE)
    ]
    terms = [one.get("classicMemberMetadata") for one in members]
    classic_terms = [one for one in terms if one]
    assert len(terms) > len(classic_terms) > 0, "members of both protocols"
    assert {one["sessionTimeoutMs"] for one in classic_terms} == {6000}
    assert {one["supportedProtocols"][0]["name"] for one in classic_terms} == {"range"}


def test_kafka_reads_of_which_topic_an_offset_is(offline_tool: Tool, own_server: ClarionProcess, unique: str) -> None:
    client = Confluent(own_server.bootstrap)
    client.create_topic(unique)
    client.produce(unique, [Outgoing(b"x")])
    worker = Worker(lambda: client.member(unique, [unique]))
    wait_for(lambda: client.group_offsets(unique), what="a commit")
    worker.leave()
    topic_id = client.topic_id(unique).translate(str.maketrans("+/", "-_"))  # librdkafka writes base64 otherwise
    own_server.terminate()
    segments = [path for path in own_server.data_dir.glob("__consumer_offsets-*/*.log") if path.stat().st_size]
    dumped = offline_tool("dump-log", "--offsets-decoder", "--files", _files(segments))
    offsets = [
        json.loads(value)
        for key, value in re.findall(r"key: (\{.*\}) payload: (\{.*\})$", dumped, re.MULTILINE)
        if json.loads(key)["type"] == "1"
    ]
    assert [(one["version"], one["data"]["offset"]) for one in offsets] == [("4", 1)]
    assert offsets[0]["data"]["topicId"] == topic_id
