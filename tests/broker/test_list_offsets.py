import threading

import pytest

from clarion.model.errors import ErrorCode
from clarion.wire.messages.logs import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from tests.broker.disks import StoryDisk
from tests.broker.harness import Node, running, versions_of

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, PENDING_UPLOAD = -1, -2, -3, -4, -5, -6
T = 1_700_000_000_000


async def ask(node: Node, timestamp: int, version: int = 11, *, topic: str = "t", partition: int = 0, epoch: int = -1):
    asked = ListOffsetsPartition(partition_index=partition, timestamp=timestamp, current_leader_epoch=epoch)
    request = ListOffsetsRequest(replica_id=-1, topics=(ListOffsetsTopic(name=topic, partitions=(asked,)),))
    reply = await node.ask(request, version)
    assert [one.name for one in reply.topics] == [topic]
    return reply.topics[0].partitions[0]


@pytest.mark.parametrize("version", versions_of("ListOffsets"))
async def test_every_version_finds_the_start_the_end_and_a_time(tmp_path, version):
    async with running(tmp_path) as node:
        await node.topic()
        await node.write("t", [T, T + 10, T + 20])
        await node.write("t", [T + 30])
        assert (await ask(node, EARLIEST, version)).offset == 0
        assert (await ask(node, LATEST, version)).offset == 4
        found = await ask(node, T + 15, version)
        assert (found.error_code, found.timestamp, found.offset) == (0, T + 20, 2)


async def test_special_times_need_the_version_that_brought_them(tmp_path):
    async with running(tmp_path) as node:
        await node.topic()
        await node.write("t", [T + 5, T + 50, T])
        for timestamp, first in ((MAX_TIMESTAMP, 7), (EARLIEST_LOCAL, 8), (LATEST_TIERED, 9), (PENDING_UPLOAD, 11)):
            assert (await ask(node, timestamp, first - 1)).error_code == ErrorCode.UNSUPPORTED_VERSION
            assert (await ask(node, timestamp, first)).error_code == 0
        assert (await ask(node, -7)).error_code == ErrorCode.UNSUPPORTED_VERSION
        newest = await ask(node, MAX_TIMESTAMP)
        assert (newest.timestamp, newest.offset) == (T + 50, 1)
        assert (await ask(node, EARLIEST_LOCAL)).offset == 0
        assert (await ask(node, LATEST_TIERED)).offset == -1
        assert (await ask(node, PENDING_UPLOAD)).offset == -1


async def test_a_time_after_the_last_record_finds_nothing(tmp_path):
    async with running(tmp_path) as node:
        await node.topic()
        assert (await ask(node, T)).offset == -1
        assert (await ask(node, MAX_TIMESTAMP)).offset == -1
        await node.write("t", [T])
        found = await ask(node, T + 1)
        assert (found.error_code, found.timestamp, found.offset, found.leader_epoch) == (0, -1, -1, -1)


async def test_the_epoch_of_an_offset_is_the_term_in_which_it_was_written(tmp_path):
    async with running(tmp_path) as node:
        await node.topic()
        await node.write("t", [T])
        first = (await ask(node, EARLIEST)).leader_epoch
        assert first == node.partition("t", 0).leader_epoch
    async with running(tmp_path) as node:
        await node.write("t", [T + 10])
        assert (await ask(node, EARLIEST)).leader_epoch == first
        assert (await ask(node, T)).leader_epoch == first
        assert (await ask(node, T + 10)).leader_epoch == first + 1
        assert (await ask(node, LATEST)).leader_epoch == first + 1


async def test_a_stale_leader_epoch_is_fenced_and_a_future_one_unknown(tmp_path):
    async with running(tmp_path) as node:
        await node.topic()
    async with running(tmp_path) as node:
        now = node.partition("t", 0).leader_epoch
        assert (await ask(node, LATEST, epoch=now - 1)).error_code == ErrorCode.FENCED_LEADER_EPOCH
        assert (await ask(node, LATEST, epoch=now + 1)).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
        assert (await ask(node, LATEST, epoch=now)).error_code == 0


async def test_an_unknown_partition_is_an_error_of_its_own(tmp_path):
    async with running(tmp_path) as node:
        await node.topic(partitions=2)
        assert (await ask(node, LATEST, partition=1)).error_code == 0
        for partition in (2, -1):
            answer = await ask(node, LATEST, partition=partition)
            assert (answer.error_code, answer.offset) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)
        assert (await ask(node, LATEST, topic="nowhere")).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_a_partition_that_is_named_twice_is_refused(tmp_path):
    async with running(tmp_path) as node:
        await node.topic(partitions=2)
        asked = [ListOffsetsPartition(partition_index=index, timestamp=LATEST) for index in (0, 0, 1)]
        request = ListOffsetsRequest(replica_id=-1, topics=(ListOffsetsTopic(name="t", partitions=tuple(asked)),))
        codes = [one.error_code for one in (await node.ask(request, 7)).topics[0].partitions]
        assert codes == [ErrorCode.INVALID_REQUEST, ErrorCode.INVALID_REQUEST, 0]


async def test_a_search_never_reads_a_file_in_the_loop(tmp_path):
    async with running(tmp_path) as node:
        await node.topic()
        await node.write("t", [T, T + 10])
        node.partition("t").roll(T)
        await node.write("t", [T + 20])
    disk, opened = StoryDisk(), []
    async with running(tmp_path, disk=disk) as node:
        disk.on_open = lambda path: opened.append((path, threading.get_ident())) if ".log" in path else None
        assert (await ask(node, T + 5)).offset == 1
        assert (await ask(node, MAX_TIMESTAMP)).offset == 2
        assert opened
        assert threading.get_ident() not in {thread for _, thread in opened}


async def test_segments_of_messages_without_a_time_are_looked_through_once(tmp_path):
    async with running(tmp_path) as node:
        await node.topic()
        await node.write("t", [-1, -1])
        node.partition("t").roll(T)
        await node.write("t", [-1])
        node.partition("t").roll(T)
    disk, opened = StoryDisk(), []
    async with running(tmp_path, disk=disk) as node:
        disk.on_open = lambda path: opened.append(path)
        for timestamp in (T, MAX_TIMESTAMP):
            assert (await ask(node, timestamp)).offset == -1
        assert opened
        opened.clear()
        for timestamp in (0, T, MAX_TIMESTAMP):
            assert (await ask(node, timestamp)).offset == -1
        assert not opened


async def test_a_search_begins_anew_when_a_file_was_taken_away_meanwhile(tmp_path):
    async with running(tmp_path) as node:
        await node.topic()
        await node.write("t", [T, T + 10])
        node.partition("t").roll(T)
    disk = StoryDisk()
    async with running(tmp_path, disk=disk) as node:
        troubles = [FileNotFoundError(2, "gone"), FileNotFoundError(2, "gone")]
        disk.on_open = lambda path: troubles.pop() if troubles and path.endswith("00.log") else None
        assert (await ask(node, T + 5)).offset == 1
        assert not troubles
        disk.on_open = lambda path: FileNotFoundError(2, "gone") if path.endswith("00.log") else None
        assert (await ask(node, T + 5)).error_code == ErrorCode.KAFKA_STORAGE_ERROR
