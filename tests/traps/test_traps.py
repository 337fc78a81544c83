"""Traps 1, 2, 4 to 8, 14 to 16: versions, batches, places in the log, order of replies."""

import select
import struct
import threading
import time

import pytest
from kio.index import load_response_schema

from clarion.wire.records import encode_batch
from tests.raw_client import API_KEYS, RawClient, decode
from tests.servers import peer_name
from tests.traps.words import (
    COORDINATOR_ERRORS,
    base_offsets,
    batch,
    create_topic,
    end_offset,
    fetch,
    fetch_values,
    find_coordinator,
    list_offsets,
    produce,
    ranges,
    send_fetch,
    topic_data,
)

UNSUPPORTED_VERSION, INVALID_REQUEST = 35, 42


# Trap 1: old librdkafka takes a minimum of 3 for a sign of a broker that knows neither compression nor idempotence.


def test_produce_is_advertised_from_zero(raw: RawClient) -> None:
    assert ranges(raw.ask("api_versions", 0))[0][0] == 0


@pytest.mark.parametrize("version", [0, 1, 2])
def test_produce_below_three_is_refused_and_writes_nothing(
    raw: RawClient, bootstrap: str, topic: str, version: int
) -> None:
    message_set = b"\0" * 30
    body = (
        struct.pack(">hiih", -1, 1000, 1, len(topic))
        + topic.encode()
        + struct.pack(">iii", 1, 0, len(message_set))
        + message_set
    )
    with RawClient(bootstrap) as old:
        old.send_body(0, version, body, flexible=False)
        answer = old.receive_frame()
    assert answer == b"" or UNSUPPORTED_VERSION in struct.unpack_from(f">ii{len(topic) + 2}xiih", answer)
    assert end_offset(raw, topic) == 0


# Trap 2: Kafka 4.0 removed JoinGroup 0 and 1, and had to bring them back.


@pytest.mark.parametrize("version", [0, 1])
def test_the_oldest_join_group_is_spoken(raw: RawClient, unique: str, version: int) -> None:
    assert ranges(raw.ask("api_versions", 0))[API_KEYS["join_group"]][0] == 0
    find_coordinator(raw, unique)
    joined = raw.ask(
        "join_group", version, group_id=unique, session_timeout=6000, rebalance_timeout=6000, member_id="",
        protocol_type="consumer", protocols=[{"name": "range", "metadata": b"m"}],
    )  # fmt: skip
    assert (joined.error_code, joined.protocol_name, joined.leader) == (0, "range", joined.member_id)
    raw.ask("leave_group", 0, group_id=unique, member_id=joined.member_id)


# Traps 4 to 6: ApiVersions is the one question that must be answered before anybody knows a common version.


def test_an_unknown_api_versions_version_is_answered_in_version_zero(raw: RawClient) -> None:
    raw.send_body(18, 77, b"\x04raw\x021\0", flexible=True)
    answer = decode(load_response_schema(18, 0), raw.receive_frame()[4:])
    assert answer.error_code == UNSUPPORTED_VERSION
    low, high = ranges(answer)[18]
    assert low == 0
    assert high >= 3
    assert ranges(raw.ask("api_versions", high, client_software_name="raw", client_software_version="1"))


@pytest.mark.parametrize("version", [3, 4])
def test_the_api_versions_answer_has_the_old_header_even_when_its_body_is_flexible(
    raw: RawClient, version: int
) -> None:
    raw.send("api_versions", version, client_software_name="raw", client_software_version="1.0")
    body = raw.receive_frame()[4:]  # a flexible header would have its tagged fields here
    assert decode(load_response_schema(18, version), body).error_code == 0


@pytest.mark.parametrize(
    ("name", "version"), [("", "1"), ("raw", ""), ("a b", "1"), ("-raw", "1"), ("raw", "1-"), ("raw", "é")]
)
def test_a_senseless_client_software_name_or_version_is_an_invalid_request(
    raw: RawClient, name: str, version: str
) -> None:
    answer = raw.ask("api_versions", 3, client_software_name=name, client_software_version=version)
    assert answer.error_code == INVALID_REQUEST


@pytest.mark.parametrize(("name", "version"), [("raw", "1"), ("apache-kafka-java", "4.3.0"), ("A.b-9", "0-x.1")])
def test_a_sensible_client_software_name_and_version_pass(raw: RawClient, name: str, version: str) -> None:
    answer = raw.ask("api_versions", 3, client_software_name=name, client_software_version=version)
    assert answer.error_code == 0


# Trap 7: a consumer hangs for ever on an answer that begins behind the offset it asked for.


@pytest.mark.parametrize("compression", [0, 1], ids=["none", "gzip"])
@pytest.mark.parametrize("version", [4, 11, 12])
def test_an_offset_in_the_middle_of_a_batch_returns_the_whole_batch(
    raw: RawClient, topic: str, version: int, compression: int
) -> None:
    first, second = batch(10, compression), batch(5, compression)
    produce(raw, topic, first)
    produce(raw, topic, second)
    found = fetch(raw, version, topic, 7)
    assert found.high_watermark == 15
    assert base_offsets(found.records) == [0, 10]
    assert base_offsets(fetch(raw, version, topic, 10).records) == [10]
    assert base_offsets(fetch(raw, version, topic, 14).records) == [10]


# Trap 8: where is what, by time and by the four special times.


@pytest.mark.parametrize("version", [1, 5, 7, 8])
def test_offsets_are_found_by_time_and_by_special_times(raw: RawClient, topic: str, version: int) -> None:
    now = int(time.time() * 1000) - 100_000
    produce(
        raw,
        topic,
        bytes(encode_batch([(None, b"a", (), now), (None, b"b", (), now + 500), (None, b"c", (), now + 100)])),
    )
    produce(raw, topic, bytes(encode_batch([(None, b"d", (), now + 200)])))

    def where(timestamp: int) -> tuple[int, int]:
        found = list_offsets(raw, version, topic, timestamp)
        return found.error_code, found.offset

    assert where(-1) == (0, 4)
    assert where(-2) == (0, 0)
    assert where(now - 1) == where(now) == (0, 0)
    assert where(now + 1) == where(now + 500) == (0, 1)
    assert where(now + 501) == (0, -1)
    if version >= 7:
        assert where(-3) == (0, 1)
        assert list_offsets(raw, version, topic, -3).timestamp == now + 500
    if version >= 8:
        assert where(-4) == (0, 0)


def test_the_special_times_of_an_empty_log_have_answers_too(raw: RawClient, topic: str) -> None:
    found = {special: list_offsets(raw, 8, topic, special) for special in (-1, -2, -3, -4, 1)}
    assert {special: answer.error_code for special, answer in found.items()} == dict.fromkeys(found, 0)
    assert {special: answer.offset for special, answer in found.items()} == {-1: 0, -2: 0, -3: -1, -4: 0, 1: -1}


# Trap 14: one connection is a queue; other connections do not stand in it.


def test_replies_come_in_request_order_and_a_long_poll_blocks_its_connection_only(
    raw: RawClient, bootstrap: str, topic: str
) -> None:
    began = time.monotonic()
    poll = send_fetch(raw, 11, topic, 0, max_wait=2000)
    asked = [raw.send("metadata", 1, topics=[{"name": topic}]) for _ in range(5)]
    with RawClient(bootstrap) as other:
        other.ask("metadata", 1, topics=[{"name": topic}])
        answered_early, _, _ = select.select([raw.socket], [], [], 0)
        assert not answered_early, "the neighbour had to wait for the long poll, or that ended too early"
    answered = [raw.receive()[0]]
    assert time.monotonic() - began > 1.9, "the long poll ended too early"
    answered += [raw.receive()[0] for _ in asked]
    assert answered == [poll, *asked]


def test_a_long_poll_ends_when_a_message_arrives(raw: RawClient, bootstrap: str, topic: str) -> None:
    began = time.monotonic()
    send_fetch(raw, 11, topic, 0, max_wait=100_000)
    with RawClient(bootstrap) as other:
        produce(other, topic, batch(1))
    answer = raw.receive()[1]
    assert base_offsets(answer.responses[0].partitions[0].records) == [0]
    assert time.monotonic() - began < 90


def test_a_long_poll_waits_for_the_wanted_number_of_bytes(raw: RawClient, bootstrap: str, topic: str) -> None:
    small = batch(1)
    send_fetch(raw, 11, topic, 0, max_wait=10_000, min_bytes=3 * len(small))
    with RawClient(bootstrap) as other:
        produce(other, topic, small)
        produce(other, topic, small)
        produce(other, topic, small)
    answer = raw.receive()[1]
    assert base_offsets(answer.responses[0].partitions[0].records) == [0, 1, 2]


# Trap 15: kafka-python 3 cannot go lower than these.


def test_the_lowest_versions_that_kafka_python_speaks_are_served(raw: RawClient, topic: str) -> None:
    advertised = ranges(raw.ask("api_versions", 0))
    for api, lowest in (("produce", 3), ("fetch", 4), ("offset_fetch", 1)):
        low, high = advertised[API_KEYS[api]]
        assert low <= lowest <= high
    produced = raw.ask(
        "produce", 3, transactional_id=None, acks=-1, timeout=5000, topic_data=topic_data(topic, batch(3))
    )
    assert produced.responses[0].partition_responses[0].error_code == 0
    assert base_offsets(fetch(raw, 4, topic, 0).records) == [0]
    find_coordinator(raw, topic)
    committed = raw.ask("offset_fetch", 1, group_id=topic, topics=[{"name": topic, "partition_indexes": [0]}])
    assert committed.topics[0].partitions[0].committed_offset == -1


# Trap 16: a reader whose limit is smaller than the next batch must not be stuck for ever (KIP-74).


@pytest.mark.parametrize("version", [4, 12])
def test_a_batch_above_the_limits_is_returned_all_the_same(raw: RawClient, topic: str, version: int) -> None:
    produce(raw, topic, batch(100))
    produce(raw, topic, batch(100))
    for limits in ({"max_bytes": 1}, {"partition_max_bytes": 1}, {"max_bytes": 1, "partition_max_bytes": 1}):
        found = fetch(raw, version, topic, 50, **limits)
        assert base_offsets(found.records) == [0], f"with {limits}"
        assert len(found.records) == len(batch(100)), "the batch is whole"


def test_only_the_first_partition_with_data_may_exceed_the_limits(raw: RawClient, unique: str) -> None:
    create_topic(raw, unique, partitions=2)
    for partition in (0, 1):
        produce(raw, unique, batch(100), partition)
    wanted = [{"partition": p, "fetch_offset": 0, "partition_max_bytes": 1_000_000} for p in (0, 1)]
    answer = raw.ask("fetch", 11, **fetch_values(unique, wanted, max_bytes=1))
    sizes = [len(partition.records or b"") for partition in answer.responses[0].partitions]
    assert sorted(map(bool, sizes)) == [False, True]


# Beyond the list: found with real clients.


def test_bytes_behind_a_request_are_ignored(raw: RawClient, topic: str) -> None:
    """librdkafka 2.16 asks for all topics with four bytes of length where one is due; Kafka overlooks the rest."""
    raw.send_body(3, 13, bytes.fromhex("00000000010000"), flexible=True)
    assert topic in [found.name for found in raw.receive()[1].topics]


# What must not hang until transactions exist.


@pytest.mark.skipif(peer_name() != "clarion", reason="Apache Kafka has transactions")
def test_a_transactional_id_is_refused_at_once(raw: RawClient, unique: str) -> None:
    refused = raw.ask(
        "init_producer_id", 4, transactional_id=unique, transaction_timeout=60_000, producer_id=-1, producer_epoch=-1
    )
    assert refused.error_code not in (0, *COORDINATOR_ERRORS), "a retriable error would make the client ask for ever"
    found = raw.ask("find_coordinator", 2, key=unique, key_type=1)
    assert found.error_code not in (0, *COORDINATOR_ERRORS)
    for version in (4, 6):
        (coordinator,) = raw.ask("find_coordinator", version, key_type=1, coordinator_keys=[unique]).coordinators
        assert coordinator.error_code not in (0, *COORDINATOR_ERRORS)


def test_a_hundred_connections_that_wait_do_not_delay_each_other(bootstrap: str, topic: str) -> None:
    """Each holds a long poll; a message wakes all of them."""
    clients = [RawClient(bootstrap) for _ in range(100)]
    for client in clients:
        send_fetch(client, 11, topic, 0, max_wait=100_000)
    with RawClient(bootstrap) as other:
        produce(other, topic, batch(1))
    began = time.monotonic()
    for client in clients:
        assert base_offsets(client.receive()[1].responses[0].partitions[0].records) == [0]
        client.socket.close()
    assert time.monotonic() - began < 60
    assert threading.active_count() < 100
