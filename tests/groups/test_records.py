"""The records of __consumer_offsets: Kafka's bytes, and back."""

from __future__ import annotations

import struct
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clarion.groups import records as r
from clarion.groups.partitions import collect
from clarion.groups.placement import java_hash, partition_for
from clarion.model.errors import MalformedError
from clarion.model.ids import NO_TOPIC_ID

names = st.text(max_size=12)
maybe_names = st.none() | names
int32s = st.integers(-(2**31), 2**31 - 1)
int64s = st.integers(-(2**63), 2**63 - 1)
blobs = st.binary(max_size=20)
partitions = st.lists(st.tuples(st.uuids(), st.sets(st.integers(0, 99), min_size=1)), max_size=4).map(collect)

classic_members = st.builds(
    r.ClassicMemberSnapshot, names, maybe_names, names, names, st.integers(0, 10**6), int32s, blobs, blobs
)
VALUES = [
    (
        r.encode_offset,
        r.decode_offset,
        st.builds(r.CommittedOffset, int64s, int32s, names, int64s, st.just(-1), st.uuids()),
    ),
    (
        r.encode_classic,
        r.decode_classic,
        st.builds(
            r.ClassicSnapshot,
            names,
            int32s,
            maybe_names,
            maybe_names,
            int64s,
            st.lists(classic_members, max_size=3).map(tuple),
        ),
    ),
    (r.encode_group_epoch, r.decode_group_epoch, st.builds(r.GroupEpoch, int32s, int64s)),
    (
        r.encode_member,
        r.decode_member,
        st.builds(
            r.MemberMetadata,
            maybe_names,
            maybe_names,
            names,
            names,
            st.lists(names, max_size=3).map(tuple),
            maybe_names,
            int32s,
            maybe_names,
            st.none()
            | st.builds(r.ClassicTerms, int32s, st.lists(st.tuples(names, blobs), min_size=1, max_size=2).map(tuple)),
        ),
    ),
    (r.encode_target_epoch, r.decode_target_epoch, st.builds(r.TargetEpoch, int32s, int64s)),
    (r.encode_target, r.decode_target, partitions),
    (
        r.encode_current,
        r.decode_current,
        st.builds(r.CurrentAssignment, int32s, int32s, st.integers(0, 2), partitions, partitions),
    ),
    (
        r.encode_regex,
        r.decode_regex,
        st.builds(r.ResolvedRegex, st.lists(names, max_size=3).map(tuple), int64s, int64s),
    ),
]
IDS = [encode.__name__ for encode, _, _ in VALUES]


@pytest.mark.parametrize(("encode", "decode", "values"), VALUES, ids=IDS)
@given(data=st.data())
def test_every_value_comes_back_as_it_was_written(encode, decode, values, data):
    value = data.draw(values)
    assert decode(encode(value)) == value


@pytest.mark.parametrize(("encode", "decode", "values"), VALUES, ids=IDS)
@given(data=st.data())
def test_a_cut_or_twisted_value_is_refused_or_read_and_never_breaks_anything_else(encode, decode, values, data):
    written = bytearray(encode(data.draw(values)))
    at = data.draw(st.integers(0, len(written) - 1))
    twisted = bytes(written[:at]) if data.draw(st.booleans()) else bytes(written[:at] + b"\xff" + written[at + 1 :])
    try:
        decode(twisted)
    except MalformedError:
        pass


@given(
    st.sampled_from([1, 5, 7, 8, 16, 2, 3, 6]).flatmap(
        lambda kind: st.builds(
            r.Key,
            st.just(kind),
            names,
            st.just("") if kind in (2, 3, 6) else names,
            int32s if kind == 1 else st.just(-1),
        )
    )
)
def test_every_key_comes_back_as_it_was_written(key):
    assert r.decode_key(r.encode_key(key)) == key


def test_an_offset_has_the_bytes_that_kafka_gives_it():
    assert r.encode_key(r.Key(1, "g", "t", 7)) == b"\0\1" + b"\0\1g" + b"\0\1t" + struct.pack(">i", 7)
    topic_id = UUID(int=7)
    fields = struct.pack(">qi", 5, 3) + b"\2m" + struct.pack(">q", 99)
    written = r.encode_offset(r.CommittedOffset(5, 3, "m", 99, topic_id=topic_id))
    assert written == b"\0\4" + fields + b"\1\0\x10" + topic_id.bytes
    assert r.encode_offset(r.CommittedOffset(5, 3, "m", 99)) == b"\0\4" + fields + b"\0"


def test_an_offset_that_an_earlier_version_wrote_is_of_no_known_topic():
    written = b"\0\3" + struct.pack(">qi", 5, 3) + b"\0\1m" + struct.pack(">q", 99)
    assert r.decode_offset(written) == r.CommittedOffset(5, 3, "m", 99, topic_id=NO_TOPIC_ID)


def test_an_offset_with_an_expiry_time_is_written_in_version_one():
    written = r.encode_offset(r.CommittedOffset(5, -1, "", 99, 100))
    assert written[:2] == b"\0\1"
    assert r.decode_offset(written).expire_timestamp_ms == 100


def test_tagged_fields_of_an_offset_that_nobody_knows_are_passed_over():
    written = b"\0\4" + struct.pack(">qi", 5, 3) + b"\2m" + struct.pack(">q", 99) + b"\2\0\1x\5\1y"
    assert r.decode_offset(written) == r.CommittedOffset(5, 3, "m", 99)


def test_a_current_assignment_with_tagged_assignment_epochs_is_read():
    topic = UUID(int=9)
    one_topic = b"\2" + topic.bytes + b"\2" + struct.pack(">i", 4) + b"\1\0\5" + b"\2" + struct.pack(">i", 2)
    written = b"\0\0" + struct.pack(">iib", 2, 1, 0) + one_topic + b"\1" + b"\0"
    assert r.decode_current(written).assigned == {topic: frozenset({4})}


@pytest.mark.parametrize("kind", [4, 9, 17, 99])
def test_records_of_other_coordinators_are_none_of_our_business(kind):
    assert r.decode_key(struct.pack(">h", kind) + b"\0\1g") is None


@pytest.mark.parametrize(("text", "hashed"), [("", 0), ("a", 97), ("hello", 99162322), ("Aa", 2112), ("BB", 2112)])
def test_the_java_hash_of_a_group_id_is_javas(text, hashed):
    assert java_hash(text) == hashed


def test_a_group_lives_in_a_partition_that_exists_even_when_the_hash_is_the_most_negative_number():
    assert java_hash("polygenelubricants") == -(2**31)
    assert partition_for("polygenelubricants", 50) == 0
    assert all(0 <= partition_for(f"g{i}", 50) < 50 for i in range(200))
