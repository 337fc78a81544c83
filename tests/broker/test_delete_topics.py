import asyncio
import errno
import os
from uuid import uuid4

import pytest

from clarion.model.errors import ErrorCode, KafkaError
from clarion.model.ids import NO_TOPIC_ID
from clarion.wire.messages.topics import DeleteTopicsRequest, DeleteTopicState
from clarion.world import RealDisk
from tests.broker.harness import Node, running, versions_of
from tests.broker.talk import batch


async def delete(node: Node, *names: str, version: int = 5):
    if version >= 6:
        return await delete_states(node, *(DeleteTopicState(name=name, topic_id=NO_TOPIC_ID) for name in names))
    return (await node.ask(DeleteTopicsRequest(topic_names=names, timeout=1000), version)).responses


async def delete_states(node: Node, *states: DeleteTopicState):
    return (await node.ask(DeleteTopicsRequest(topics=states, timeout=1000), 6)).responses


@pytest.mark.parametrize("version", versions_of("DeleteTopics"))
async def test_every_version_deletes_a_topic_and_its_files(tmp_path, version):
    async with running(tmp_path) as node:
        await node.topic("t", 2)
        await node.topic("other")
        (result,) = await delete(node, "t", version=version)
        assert (result.name, result.error_code) == ("t", 0)
        assert list(node.broker.image.topics) == ["other"]
        assert [path.name for path in tmp_path.iterdir() if path.name.startswith("t-")] == []


async def test_a_topic_is_deleted_by_its_id(tmp_path):
    async with running(tmp_path) as node:
        await node.topic("t")
        topic_id = node.broker.image.topics["t"].id
        (result,) = await delete_states(node, DeleteTopicState(name=None, topic_id=topic_id))
        assert (result.error_code, result.name, result.topic_id) == (0, "t", topic_id)
        (result,) = await delete_states(node, DeleteTopicState(name=None, topic_id=topic_id))
        assert result.error_code == ErrorCode.UNKNOWN_TOPIC_ID


@pytest.mark.parametrize("version", versions_of("DeleteTopics"))
async def test_nothing_is_deleted_where_deletion_is_switched_off(tmp_path, version):
    async with running(tmp_path, delete_topic_enable=False) as node:
        await node.topic("t")
        (result,) = await delete(node, "t", version=version)
        disabled = ErrorCode.TOPIC_DELETION_DISABLED if version >= 3 else ErrorCode.INVALID_REQUEST
        assert (result.name, result.error_code) == ("t", disabled)
        assert version < 5 or "delete.topic.enable" in result.error_message
        assert list(node.broker.image.topics) == ["t"]


class NoRename(RealDisk):
    """Folders keep their names, once it is told so."""

    is_bad = False

    def rename(self, old: str, new: str) -> None:
        if self.is_bad:
            raise OSError(errno.EIO, os.strerror(errno.EIO), old)
        super().rename(old, new)


async def test_a_topic_whose_files_cannot_be_removed_is_deleted_and_the_next_start_removes_them(tmp_path):
    disk = NoRename()
    async with running(tmp_path, disk=disk) as node:
        await node.topic("t", 2)
        await node.client.produce({("t", 1): batch(b"v")})
        disk.is_bad = True
        (result,) = await delete(node, "t")
        disk.is_bad = False
        assert (result.error_code, node.broker.image.topic("t")) == (0, None)
        assert (tmp_path / "t-1").exists()
    async with running(tmp_path) as node:
        assert not [path.name for path in tmp_path.iterdir() if path.name.startswith("t-")]
        assert not node.broker.registry.being_deleted


async def test_a_name_whose_old_files_could_not_be_removed_can_be_used_again_and_they_are_not_kept(tmp_path):
    disk = NoRename()
    async with running(tmp_path, disk=disk) as node:
        await node.topic("t")
        await node.client.produce({("t", 0): batch(b"old")})
        disk.is_bad = True
        await delete(node, "t")
        disk.is_bad = False
        await node.topic("t")
        assert (await node.client.produce({("t", 0): batch(b"new")}))["t", 0].base_offset == 0
        assert (await node.client.fetch({("t", 0): 0})).values() == [b"new"]
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("t-")] == ["t-0"]


async def test_of_two_who_delete_by_id_at_once_the_second_is_told_that_the_id_is_gone(tmp_path):
    async with running(tmp_path) as node:
        await node.topic("t")
        topic_id = node.broker.image.topics["t"].id
        first = asyncio.create_task(node.broker.delete_topic("t", topic_id))
        with pytest.raises(KafkaError) as refusal:
            await asyncio.gather(first, node.broker.delete_topic("t", topic_id))
        assert (await first).id == topic_id
        assert refusal.value.code == ErrorCode.UNKNOWN_TOPIC_ID


async def test_what_cannot_be_deleted_has_a_reason_and_the_rest_goes(tmp_path):
    async with running(tmp_path) as node:
        await node.topic("t")
        results = await delete_states(
            node,
            DeleteTopicState(name="nowhere", topic_id=NO_TOPIC_ID),
            DeleteTopicState(name=None, topic_id=uuid4()),
            DeleteTopicState(name=None, topic_id=NO_TOPIC_ID),
            DeleteTopicState(name="t", topic_id=uuid4()),
            DeleteTopicState(name="t", topic_id=NO_TOPIC_ID),
        )
        assert [result.error_code for result in results] == [
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode.UNKNOWN_TOPIC_ID,
            ErrorCode.INVALID_REQUEST,
            ErrorCode.INVALID_REQUEST,
            0,
        ]
        assert all(result.error_message for result in results[:4])


async def test_a_topic_that_is_named_twice_is_kept(tmp_path):
    async with running(tmp_path) as node:
        await node.topic("t")
        (result,) = await delete(node, "t", "t")
        assert result.error_code == ErrorCode.INVALID_REQUEST
        assert node.broker.image.topic("t") is not None


async def test_a_name_can_be_used_again(tmp_path):
    async with running(tmp_path) as node:
        await node.topic("t")
        await node.write("t", [1_700_000_000_000])
        old = node.broker.image.topics["t"].id
        await delete(node, "t")
        await node.topic("t")
        assert node.broker.image.topics["t"].id != old
        assert node.partition("t", 0).next_offset == 0
