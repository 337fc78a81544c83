"""A write repeated with its idempotency key is done once, over restarts, and never mistaken for a producer's."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clarion.broker.authorizer import ANONYMOUS, Principal
from clarion.gateway.idempotency import keyed_producer, partition_of_idempotency_key
from clarion.gateway.message_forms import MessageToWrite
from clarion.model.errors import ErrorCode, KafkaError
from clarion.replication.producers import FIRST_KEYED_ID, KEYED_KEPT_MS, ProducerLimits, ProducerStates
from clarion.testing import embedded
from clarion.wire.batch import read_header
from clarion.wire.records import encode_batch
from tests.gateway.asking import Asker, check_problem

NDJSON = "application/x-ndjson"


def write(api, topic, value, idempotency_key, **fields):
    return api.post(f"/v1/topics/{topic}/messages", {"value": value, **fields}, Idempotency_Key=idempotency_key)


def test_a_repeated_write_is_done_once_and_answered_the_same(api, http_broker, topic):
    first = write(api, topic, "charge", "k1")
    for _ in range(5):
        assert write(api, topic, "charge", "k1").json == first.json
    assert [one.value for one in http_broker.messages(topic)] == [b"charge"]
    assert write(api, topic, "charge", "k2").json != first.json


def test_a_key_that_was_used_for_another_message_is_refused(api, http_broker, topic):
    assert write(api, topic, "charge", "k", key="a").status == 200
    for other in ({"value": "refund"}, {"value": "charge", "headers": {"x": "1"}}, {"value": "charge", "timestamp": 5}):
        answer = api.post(f"/v1/topics/{topic}/messages", {"key": "a", **other}, Idempotency_Key="k")
        assert check_problem(answer, 422, "another message")["type"].endswith("idempotency-key-reused")
    assert len(http_broker.messages(topic)) == 1


def test_each_message_of_a_batch_has_its_own_key(api, http_broker, topic):
    lines = b'{"value": 1, "idempotency_key": "a"}\n{"value": 2, "idempotency_key": "b"}\n{"value": 3}\n'
    first = api.post(f"/v1/topics/{topic}/messages", lines, Content_Type=NDJSON)
    again = api.post(f"/v1/topics/{topic}/messages", lines, Content_Type=NDJSON)
    assert first.lines[:2] == again.lines[:2]
    assert first.lines[2] != again.lines[2]
    assert sorted(one.value for one in http_broker.messages(topic)) == [b"1", b"2", b"3", b"3"]


def test_one_key_for_a_whole_batch_stands_for_each_of_its_messages(api, http_broker, topic):
    batch = [{"value": number} for number in range(5)]
    first = api.post(f"/v1/topics/{topic}/messages", batch, Idempotency_Key="batch")
    assert api.post(f"/v1/topics/{topic}/messages", batch, Idempotency_Key="batch").json == first.json
    assert len(http_broker.messages(topic)) == 5


def test_keys_survive_a_clean_restart_and_a_crash():
    with embedded(metrics_port=0, clarion_http_share=1.0, topics={"t": 3}, durability="fsync") as broker:
        api = Asker(broker.http_url)
        first = [write(api, "t", "x", f"k{number}").json for number in range(10)]
        for bring_back in (lambda: broker.restart(), lambda: (broker.kill(), broker.start())):
            bring_back()
            api = Asker(broker.http_url)
            assert [write(api, "t", "x", f"k{number}").json for number in range(10)] == first
            check_problem(write(api, "t", "y", "k3"), 422, "another message")
        assert len(broker.messages("t")) == 10


def test_keys_are_forgotten_when_their_time_is_over_and_not_before():
    with embedded(metrics_port=0, clarion_http_share=1.0, topics=["t"]) as broker:
        api = Asker(broker.http_url)
        write(api, "t", "x", "k")
        broker.clock.advance(KEYED_KEPT_MS / 1000 - 60)
        broker.run_housekeeping()
        assert write(api, "t", "x", "k").json["offset"] == 0
        broker.clock.advance(120)
        broker.run_housekeeping()
        assert write(api, "t", "x", "k").json["offset"] == 1


@given(st.text(min_size=1), st.binary(), st.integers(1, 100))
def test_ids_of_keys_are_in_a_range_of_their_own_and_partitions_do_not_change(key, value, count):
    producer = keyed_producer(ANONYMOUS, key, MessageToWrite(value=value))
    assert FIRST_KEYED_ID <= producer.producer_id < 2 * FIRST_KEYED_ID
    assert 0 <= producer.base_sequence < 2**31
    assert producer == keyed_producer(ANONYMOUS, key, MessageToWrite(value=value))
    assert 0 <= partition_of_idempotency_key(key, count) < count


def test_two_users_do_not_share_their_keys():
    mine = keyed_producer(ANONYMOUS, "k", MessageToWrite())
    assert mine != keyed_producer(Principal("User", "else"), "k", MessageToWrite())


def test_parts_of_a_message_do_not_run_into_each_other():
    told = [MessageToWrite(b"a", b"b"), MessageToWrite(b"ab"), MessageToWrite(None, b"ab"), MessageToWrite(b"", b"ab")]
    assert len({keyed_producer(ANONYMOUS, "k", one).base_sequence for one in told}) == len(told)


# The partition's memory


def header_of(producer_id, sequence=0, base_offset=0):
    batch = encode_batch(
        [(None, b"v", (), 0)],
        base_offset=base_offset,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=sequence,
    )
    return read_header(batch)


def test_keys_take_no_place_from_producers():
    states = ProducerStates(ProducerLimits(in_all_max=1000, in_one_max=2, keyed_in_one_max=3))
    for number in range(2):
        states.replay(header_of(number), 1)
    for number in range(10):
        states.replay(header_of(FIRST_KEYED_ID + number), 1)
    assert [one.id for one in states] == [0, 1, *(FIRST_KEYED_ID + number for number in (7, 8, 9))]
    assert (states.limits.count, states.limits.keyed_count) == (2, 3)


def test_a_key_too_many_is_refused_until_the_oldest_may_go():
    states = ProducerStates(ProducerLimits(keyed_in_one_max=2))
    for number in range(2):
        states.replay(header_of(FIRST_KEYED_ID + number), 1000)
    another = header_of(FIRST_KEYED_ID + 2)
    with pytest.raises(KafkaError, match="no room") as refused:
        states.check(another, 1000 + KEYED_KEPT_MS - 1)
    assert refused.value.code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert states.check(header_of(FIRST_KEYED_ID), 1000) is not None, "a repetition is still known"
    assert states.check(another, 1000 + KEYED_KEPT_MS) is None
    states.expire_keys(2000)
    assert len(states) == states.limits.keyed_count == 0


def test_a_key_whose_write_was_refused_takes_no_place_and_may_have_another_message():
    states = ProducerStates(ProducerLimits(keyed_in_one_max=1))
    written = header_of(FIRST_KEYED_ID, sequence=7)
    states.replay(written, 1000)
    states.refuse(header_of(FIRST_KEYED_ID + 1, sequence=5), 1000, ErrorCode.KAFKA_STORAGE_ERROR)
    assert states.check(written, 1000) is not None, "the message that was written is still known"
    states.expire_keys(2000)
    assert states.check(header_of(FIRST_KEYED_ID + 1, sequence=6), 2000) is None


def test_keys_from_a_wrong_clock_go_in_their_time_once_it_is_right():
    states = ProducerStates(ProducerLimits(keyed_in_one_max=1))
    states.replay(header_of(FIRST_KEYED_ID), 10**15)
    states.restart_times(1000)
    with pytest.raises(KafkaError, match="no room"):
        states.check(header_of(FIRST_KEYED_ID + 1), 1000)
    assert states.check(header_of(FIRST_KEYED_ID + 1), 1000 + KEYED_KEPT_MS) is None
    states.expire_keys(1001)
    assert len(states) == 0


def test_a_key_that_somebody_goes_on_using_holds_up_none_of_the_others():
    states = ProducerStates(ProducerLimits(keyed_in_one_max=2))
    for number in range(2):
        states.replay(header_of(FIRST_KEYED_ID + number), 1000)
    states.replay(header_of(FIRST_KEYED_ID, sequence=1, base_offset=2), 1000 + KEYED_KEPT_MS)
    assert states.check(header_of(FIRST_KEYED_ID + 2), 1000 + KEYED_KEPT_MS) is None
    states.expire_keys(1001)
    assert [one.id for one in states] == [FIRST_KEYED_ID]


def test_a_follower_whose_other_partitions_have_many_keys_remembers_all_that_the_leader_has_taken():
    """Room is asked for where a key is taken. What is in the log was answered: forgotten, it would be written twice."""
    leader = ProducerStates(ProducerLimits(in_all_max=300))
    shared = ProducerLimits(in_all_max=300)
    follower, busy = ProducerStates(shared), ProducerStates(shared)
    keys = [header_of(FIRST_KEYED_ID + number, base_offset=number) for number in range(200)]
    for number, key in enumerate(keys):
        assert leader.check(key, number) is None
        leader.replay(key, number)
        follower.replay(key, number)
        busy.replay(header_of(FIRST_KEYED_ID + 1000 + number), number)
    assert all(follower.check(key, 400) is not None for key in keys)
    assert shared.keyed_count == 400
    another = header_of(FIRST_KEYED_ID + 500)
    with pytest.raises(KafkaError, match="no room"):
        follower.check(another, 400)
    later = 199 + KEYED_KEPT_MS
    for number in range(50):  # what nobody relies on any more gives way
        follower.replay(header_of(FIRST_KEYED_ID + 500 + number), later)
    assert (len(follower), shared.keyed_count) == (200, 400)
    busy.forget_all()
    follower.forget_all()
    assert shared.keyed_count == 0
