"""The bridge against kio as oracle, and against whatever a stranger may send."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from random import Random
from struct import pack
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.serial import entity_reader, entity_writer

from clarion.model.errors import MalformedError
from clarion.model.ids import NO_TOPIC_ID
from clarion.wire import apis, bridge
from clarion.wire.left_out import LeftOut
from clarion.wire.limits import request_elements_max
from clarion.wire.messages.configs import (
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from clarion.wire.messages.logs import ListOffsetsRequest
from clarion.wire.messages.metadata import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    Cursor,
    DescribeTopicPartitionsRequest,
    SupportedFeatureKey,
    TopicRequest,
)
from clarion.wire.messages.share_groups import (
    AcquiredRecords,
    ShareFetchPartitionData,
    ShareFetchResponse,
    ShareFetchTopicResponse,
)
from clarion.wire.messages.topics import DeleteTopicsRequest, DeleteTopicState
from tests.wire.messages_at_random import random_message

HAND_WRITTEN = {apis.PRODUCE, apis.FETCH}
BRIDGED = [api for api in apis.APIS.values() if api.key not in HAND_WRITTEN]
DIRECTIONS = ("request", "response")


def neutral_of(api: apis.Api, direction: str) -> type:
    return api.request if direction == "request" else api.response


def kio_class(api: apis.Api, version: int, direction: str) -> type:
    module = import_module(f"kio.schema.{api.snake_name}.v{version}.{direction}")
    return getattr(module, api.name + direction.capitalize())


def kio_rewrite(api: apis.Api, version: int, direction: str, body: bytes) -> bytes:
    """Read by kio to the last byte, and written again by kio."""
    entity_type = kio_class(api, version, direction)
    entity, size = entity_reader(entity_type)(body, 0)
    assert size == len(body)
    out = io.BytesIO()
    entity_writer(entity_type)(out, entity)
    return out.getvalue()


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("api", BRIDGED, ids=lambda api: api.name)
def test_every_version_reads_and_writes_what_kio_reads_and_writes(api, direction):
    neutral = neutral_of(api, direction)
    for version in range(api.min_version, api.max_version + 1):
        for seed in range(8):
            chance = Random(f"{version}-{seed}")
            message = random_message(neutral, api.key, version, direction, chance, with_own_fields=False)
            body = bridge.encode(message, api.key, version, direction)
            assert kio_rewrite(api, version, direction, body) == body
            assert bridge.decode(neutral, api.key, version, direction, body) == message


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("api", BRIDGED, ids=lambda api: api.name)
def test_fields_of_our_own_are_read_as_they_were_written(api, direction):
    neutral = neutral_of(api, direction)
    for version in range(api.min_version, api.max_version + 1):
        message = random_message(neutral, api.key, version, direction, Random(version))
        body = bridge.encode(message, api.key, version, direction)
        assert bridge.decode(neutral, api.key, version, direction, body) == message


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("api", BRIDGED, ids=lambda api: api.name)
def test_every_cut_is_malformed_and_a_tail_is_passed_over_in_requests_alone(api, direction):
    neutral = neutral_of(api, direction)
    for version in {api.min_version, api.max_version}:
        message = random_message(neutral, api.key, version, direction, Random(7))
        body = bridge.encode(message, api.key, version, direction)
        for end in range(0, len(body), max(1, len(body) // 100)):
            with pytest.raises(MalformedError):
                bridge.decode(neutral, api.key, version, direction, body[:end])
        if direction == "request":  # Kafka passes over it too, and librdkafka relies on that
            assert bridge.decode(neutral, api.key, version, direction, body + b"\0") == message
            continue
        with pytest.raises(MalformedError, match="follow"):
            bridge.decode(neutral, api.key, version, direction, body + b"\0")


def read_or_refuse(api: apis.Api, version: int, direction: str, body: bytes) -> None:
    try:
        bridge.decode(neutral_of(api, direction), api.key, version, direction, body)
    except MalformedError:
        pass


some_version = st.sampled_from([(api, v) for api in BRIDGED for v in range(api.min_version, api.max_version + 1)])


@given(some_version, st.sampled_from(DIRECTIONS), st.binary(max_size=120))
@settings(max_examples=500, deadline=None)
def test_random_bytes_are_read_or_malformed_and_nothing_else(api_version, direction, body):
    read_or_refuse(*api_version, direction, body)


@given(some_version, st.sampled_from(DIRECTIONS), st.integers(0, 50), st.data())
@settings(max_examples=400, deadline=None)
def test_flipped_bits_are_read_or_malformed_and_nothing_else(api_version, direction, seed, data):
    api, version = api_version
    message = random_message(neutral_of(api, direction), api.key, version, direction, Random(seed))
    body = bytearray(bridge.encode(message, api.key, version, direction))
    for _ in range(data.draw(st.integers(1, 4)) if body else 0):
        at = data.draw(st.integers(0, len(body) - 1))
        body[at] ^= 1 << data.draw(st.integers(0, 7))
    read_or_refuse(api, version, direction, bytes(body))


def test_an_array_length_of_four_billion_is_refused_before_anything_is_built():
    body = pack(">ib", -1, 0) + b"\xff\xff\xff\xff\x0f" + b"\0\0"
    with pytest.raises(MalformedError, match="4294967294 elements announced"):
        bridge.decode(ListOffsetsRequest, apis.LIST_OFFSETS, 6, "request", body)


def test_a_frame_of_empty_names_is_refused_by_the_number_of_its_elements():
    count = request_elements_max(apis.LIST_OFFSETS) + 1
    body = pack(">ib", -1, 0) + bytes([count + 1 & 0x7F | 0x80, (count + 1) >> 7 & 0x7F | 0x80, (count + 1) >> 14])
    body += b"\x01\x01\x00" * count + bytes(10)
    with pytest.raises(MalformedError, match="elements"):
        bridge.decode(ListOffsetsRequest, apis.LIST_OFFSETS, 6, "request", body)


def test_unknown_tagged_fields_are_skipped():
    body = b"\x05name" + b"\x041.0" + b"\x02" + b"\x07\x03abc" + b"\xff\x01\x00"
    request = bridge.decode(ApiVersionsRequest, apis.API_VERSIONS, 3, "request", body)
    assert request == ApiVersionsRequest(client_software_name="name", client_software_version="1.0")


def test_a_tagged_field_that_ends_elsewhere_than_it_says_is_malformed():
    good = bridge.encode(ApiVersionsResponse(api_keys=(), finalized_features_epoch=7), apis.API_VERSIONS, 3, "response")
    assert good.endswith(b"\x01\x01\x08" + pack(">q", 7))
    lying = good[:-9] + b"\x07" + good[-8:]
    with pytest.raises(MalformedError):
        bridge.decode(ApiVersionsResponse, apis.API_VERSIONS, 3, "response", lying)


def test_a_varint_of_more_than_32_bits_is_malformed():
    for varint in (b"\x80\x80\x80\x80\x10", b"\x80\x80\x80\x80\x80\x01"):
        with pytest.raises(MalformedError):
            bridge.decode(ApiVersionsRequest, apis.API_VERSIONS, 3, "request", varint + bytes(8))


def test_text_that_is_not_utf_8_is_malformed():
    with pytest.raises(MalformedError, match="UTF-8"):
        bridge.decode(ApiVersionsRequest, apis.API_VERSIONS, 3, "request", b"\x02\xff\x01\x00")


def test_null_where_the_version_knows_none_is_malformed_when_read_and_our_mistake_when_written():
    with pytest.raises(MalformedError, match="client_software_name is null"):
        bridge.decode(ApiVersionsRequest, apis.API_VERSIONS, 3, "request", b"\x00\x01\x00")
    with pytest.raises(ValueError, match="null"):
        bridge.encode(ApiVersionsRequest(client_software_name=None), apis.API_VERSIONS, 3, "request")


def test_a_number_that_does_not_fit_is_our_mistake():
    with pytest.raises(ValueError, match="does not fit"):
        bridge.encode(ApiVersionsResponse(api_keys=(), throttle_time=2**40), apis.API_VERSIONS, 1, "response")


class Walked(tuple):
    """Counts how often it is walked through."""

    walks = 0

    def __iter__(self):
        Walked.walks += 1
        return super().__iter__()


@pytest.mark.parametrize("version", [1, 4])
def test_an_array_that_a_message_holds_many_times_is_walked_through_once(version):
    configs = [
        DescribeConfigsResourceResult(
            name=f"setting-{number}", value="1", read_only=False, is_sensitive=False, synonyms=()
        )
        for number in range(30)
    ]

    def reply(held: Callable[[], tuple]) -> bytes:
        results = tuple(
            DescribeConfigsResult(
                error_code=0, error_message=None, resource_type=2, resource_name=f"topic-{number}", configs=held()
            )
            for number in range(100)
        )
        response = DescribeConfigsResponse(results=results)
        return bridge.encode(response, apis.DESCRIBE_CONFIGS, version, "response")

    shared = Walked(configs)
    Walked.walks = 0
    assert reply(lambda: shared) == reply(lambda: (*configs,))
    assert Walked.walks == 1


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("count", [1, 3, 20])
def test_what_is_left_out_of_a_message_has_its_place_between_the_pieces(version, count):
    contents = [bytes([number]) * 50 * number for number in range(count)]

    def response(held: Callable[[bytes], Any]) -> ShareFetchResponse:
        acquired = (AcquiredRecords(first_offset=1, last_offset=2, delivery_count=1),)
        partitions = tuple(
            ShareFetchPartitionData(partition_index=index, records=held(one), acquired_records=acquired)
            for index, one in enumerate(contents)
        )
        topic = ShareFetchTopicResponse(topic_id=NO_TOPIC_ID, partitions=partitions)
        return ShareFetchResponse(responses=(topic, topic))  # the very same partitions, twice

    whole = bridge.encode(response(bytes), apis.SHARE_FETCH, version, "response")
    around = bridge.encode_around(response(lambda one: LeftOut(len(one), [one])), apis.SHARE_FETCH, version, "response")
    assert b"".join([one if isinstance(one, bytes) else one.parts[0] for one in around]) == whole
    assert sum(isinstance(one, LeftOut) for one in around) == 2 * count
    assert bridge.encode_around(response(bytes), apis.SHARE_FETCH, version, "response") == [whole]


def test_fields_that_a_version_lacks_are_dropped_and_come_back_as_defaults():
    request = DeleteTopicsRequest(
        topics=(DeleteTopicState(name="a", topic_id=NO_TOPIC_ID),), topic_names=("b",), timeout=5
    )
    body = bridge.encode(request, apis.DELETE_TOPICS, 4, "request")
    assert bridge.decode(DeleteTopicsRequest, apis.DELETE_TOPICS, 4, "request", body) == DeleteTopicsRequest(
        topic_names=("b",), timeout=5
    )


def test_fields_that_the_neutral_class_lacks_are_written_as_kios_default_and_read_over():
    @dataclass(frozen=True, kw_only=True, slots=True)
    class Narrow:
        topics: tuple[TopicRequest, ...]

    body = bridge.encode(Narrow(topics=(TopicRequest(name="t"),)), apis.DESCRIBE_TOPIC_PARTITIONS, 0, "request")
    wide = bridge.decode(DescribeTopicPartitionsRequest, apis.DESCRIBE_TOPIC_PARTITIONS, 0, "request", body)
    assert (wide.response_partition_limit, wide.cursor) == (2000, None)
    body = bridge.encode(
        DescribeTopicPartitionsRequest(topics=wide.topics, cursor=Cursor(topic_name="t", partition_index=1)),
        apis.DESCRIBE_TOPIC_PARTITIONS,
        0,
        "request",
    )
    assert bridge.decode(Narrow, apis.DESCRIBE_TOPIC_PARTITIONS, 0, "request", body) == Narrow(topics=wide.topics)


def test_a_message_shares_no_memory_with_its_frame():
    frame = bytearray(b"\x05name\x041.0\x00")
    request = bridge.decode(ApiVersionsRequest, apis.API_VERSIONS, 3, "request", memoryview(frame))
    frame[:] = bytes(len(frame))
    assert request.client_software_name == "name"


def test_tagged_fields_at_their_default_are_not_sent():
    plain = bridge.encode(ApiVersionsResponse(api_keys=()), apis.API_VERSIONS, 3, "response")
    assert plain.endswith(b"\0")
    assert len(plain) == 2 + 1 + 4 + 1
    feature = SupportedFeatureKey(name="group.version", min_version=1, max_version=1)
    full = bridge.encode(
        ApiVersionsResponse(api_keys=(), supported_features=(feature,)), apis.API_VERSIONS, 3, "response"
    )
    assert bridge.decode(ApiVersionsResponse, apis.API_VERSIONS, 3, "response", full).supported_features == (feature,)
