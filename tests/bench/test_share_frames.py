"""The share consumer's frames, against the broker's own codecs."""

from __future__ import annotations

from uuid import UUID

from bench.share_frames import Member

from bench import share_frames
from clarion.wire import bridge
from clarion.wire.messages.groups import TopicPartitions
from clarion.wire.messages.share_groups import (
    AcquiredRecords,
    ShareAcknowledgePartitionData,
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    ShareAcknowledgeTopicResponse,
    ShareAssignment,
    ShareFetchPartitionData,
    ShareFetchRequest,
    ShareFetchResponse,
    ShareFetchTopicResponse,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)

TOPIC = UUID(int=7)
MEMBER = Member("g", "m", TOPIC.bytes)
HEADER_BYTES = 4 + 2 + 2 + 4 + 2 + len("bench") + 1


def asked(kind: type, api_key: int, version: int, frame: bytes):
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    return bridge.decode(kind, api_key, version, "request", frame[HEADER_BYTES:])


def answered(message: object, api_key: int, version: int) -> bytes:
    """Without the length prefix."""
    return b"\0\0\0\1\0" + bridge.encode(message, api_key, version, "response")


def test_a_member_joins_and_hears_which_topic_it_reads():
    request = asked(ShareGroupHeartbeatRequest, 76, 1, share_frames.heartbeat("g", "m", 0, "orders"))
    assert request == ShareGroupHeartbeatRequest(group_id="g", member_id="m", subscribed_topic_names=("orders",))
    given = ShareAssignment(topic_partitions=(TopicPartitions(topic_id=TOPIC, partitions=(0,)),))
    reply = ShareGroupHeartbeatResponse(member_id="m", member_epoch=5, heartbeat_interval=9, assignment=given)
    assert share_frames.read_heartbeat(answered(reply, 76, 1)) == (0, 5, TOPIC.bytes)
    for nothing in (None, ShareAssignment()):
        reply = ShareGroupHeartbeatResponse(member_id="m", member_epoch=5, assignment=nothing)
        assert share_frames.read_heartbeat(answered(reply, 76, 1)) == (0, 5, None)


def test_every_offset_is_acknowledged_by_itself():
    fetch = asked(ShareFetchRequest, 78, 2, share_frames.fetch(MEMBER, 3, [5, 7], records_max=500))
    assert (fetch.share_session_epoch, fetch.max_records, fetch.share_acquire_mode) == (3, 500, 1)
    acknowledge = asked(ShareAcknowledgeRequest, 79, 2, share_frames.acknowledge(MEMBER, 4, range(300)))
    for request, offsets in ((fetch, [5, 7]), (acknowledge, list(range(300)))):
        (topic,) = request.topics
        (partition,) = topic.partitions
        assert (topic.topic_id, partition.partition_index) == (TOPIC, 0)
        told = [(one.first_offset, one.last_offset, one.acknowledge_types) for one in partition.acknowledgement_batches]
        assert told == [(offset, offset, (1,)) for offset in offsets]


def test_what_was_acquired_is_read_from_the_answer():
    runs = [AcquiredRecords(first_offset=first, last_offset=first + 4, delivery_count=1) for first in (10, 20)]
    data = ShareFetchPartitionData(
        partition_index=0, acknowledge_error_code=9, records=b"r" * 1_000, acquired_records=tuple(runs)
    )
    topics = (ShareFetchTopicResponse(topic_id=TOPIC, partitions=(data,)),)
    reply = ShareFetchResponse(acquisition_lock_timeout=30_000, responses=topics)
    assert share_frames.read_fetched(answered(reply, 78, 2)) == (0, 9, [(10, 14), (20, 24)])
    assert share_frames.read_fetched(answered(ShareFetchResponse(), 78, 2)) == (0, 0, [])
    assert share_frames.read_fetched(answered(ShareFetchResponse(error_code=12), 78, 2)) == (12, 0, [])


def test_a_refused_acknowledgement_is_seen():
    data = ShareAcknowledgePartitionData(partition_index=0, error_code=121)
    topics = (ShareAcknowledgeTopicResponse(topic_id=TOPIC, partitions=(data,)),)
    assert share_frames.read_acknowledged(answered(ShareAcknowledgeResponse(responses=topics), 79, 2)) == 121
    assert share_frames.read_acknowledged(answered(ShareAcknowledgeResponse(), 79, 2)) == 0
