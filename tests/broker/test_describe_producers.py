from clarion.broker.apis import k61_describe_producers
from clarion.model.errors import ErrorCode
from clarion.wire.messages.logs import DescribeProducersRequest, DescribeProducersTopic
from tests.broker.harness import Node, running
from tests.broker.talk import batch, now_ms


async def described(node: Node, *indexes: int, topic: str = "t"):
    request = DescribeProducersRequest(topics=(DescribeProducersTopic(name=topic, partition_indexes=indexes),))
    return (await node.ask(request, 0)).topics[0].partitions


async def write(node: Node, producer: int, sequence: int, at: int, epoch: int = 0) -> None:
    how = {"producer_id": producer, "producer_epoch": epoch, "base_sequence": sequence}
    produced = await node.client.produce({("t", 0): batch(b"a", b"b", at=at, **how)})
    assert produced["t", 0].error_code == 0


async def test_idempotent_producers_are_told_with_their_last_batch(tmp_path):
    async with running(tmp_path) as node:
        await node.topic(partitions=2)
        at = now_ms()
        await write(node, 9, 0, at)
        await write(node, 9, 2, at + 5)
        await write(node, 11, 0, at + 7, epoch=3)
        await node.client.produce({("t", 0): batch(b"not idempotent")})
        with_some, without = await described(node, 0, 1)
        told = [
            (one.producer_id, one.producer_epoch, one.last_sequence, one.last_timestamp)
            for one in with_some.active_producers
        ]
        assert told == [(9, 0, 3, at + 5), (11, 3, 1, at + 7)]
        assert {(one.coordinator_epoch, one.current_txn_start_offset) for one in with_some.active_producers} == {
            (-1, -1)
        }
        assert (without.error_code, without.active_producers) == (0, ())


async def test_what_does_not_exist_has_an_error_of_its_own(tmp_path):
    async with running(tmp_path) as node:
        await node.topic()
        assert [one.error_code for one in await described(node, 0, 1)] == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        (nowhere,) = await described(node, 0, topic="nowhere")
        assert nowhere.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert nowhere.error_message


async def test_a_reply_has_room_for_a_bounded_number(tmp_path, monkeypatch):
    monkeypatch.setattr(k61_describe_producers, "PRODUCERS_MAX", 3)
    async with running(tmp_path) as node:
        await node.topic(partitions=2)
        for producer in range(5):
            await write(node, producer, 0, now_ms())
        first, again = await described(node, 0, 0)
        assert [one.producer_id for one in first.active_producers] == [0, 1, 2]
        assert again.active_producers == ()
