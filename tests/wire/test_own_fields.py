"""Tagged fields of Clarion's own: they come through, and whoever does not know them is not bothered."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clarion.model.errors import MalformedError
from clarion.wire import apis, bridge
from clarion.wire.cursor import FieldReader
from clarion.wire.limits import request_elements_max
from clarion.wire.messages.share_groups import (
    AcknowledgementBatch,
    ShareAcknowledgeRequest,
    ShareFetchPartition,
    ShareFetchRequest,
    ShareFetchTopic,
)
from clarion.wire.own_fields import OWN_FIELDS
from clarion.wire.plan import read_plan
from clarion.wire.reader import compile_reader
from clarion.wire.tables.shares import TABLES
from tests.wire.messages_at_random import FIRST_OWN_TAG


def request(kind: type, **more: object) -> ShareFetchRequest | ShareAcknowledgeRequest:
    batch = AcknowledgementBatch(first_offset=5, last_offset=6, acknowledge_types=(2,), **more)  # type: ignore[arg-type]
    partition = ShareFetchPartition(partition_index=1, acknowledgement_batches=(batch,))
    return kind(group_id="g", member_id="m", topics=(ShareFetchTopic(partitions=(partition,)),))  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("key", "kind"), [(apis.SHARE_FETCH, ShareFetchRequest), (apis.SHARE_ACKNOWLEDGE, ShareAcknowledgeRequest)]
)
@pytest.mark.parametrize("version", [1, 2])
def test_they_come_through_and_others_read_the_message_without_them(key: int, kind: type, version: int) -> None:
    sent = request(kind, delay_ms=7_000, reason="broken", extend_ms=60_000)
    body = bridge.encode(sent, key, version, "request")
    assert bridge.decode(kind, key, version, "request", body) == sent
    as_in_kafka = compile_reader(read_plan(TABLES[kind.__name__], version), kind)
    assert as_in_kafka(FieldReader(body, flexible=True)) == request(kind)


def test_what_kafka_means_costs_nothing_more() -> None:
    plain = bridge.encode(request(ShareAcknowledgeRequest), apis.SHARE_ACKNOWLEDGE, 2, "request")
    ours = bridge.encode(request(ShareAcknowledgeRequest, delay_ms=0), apis.SHARE_ACKNOWLEDGE, 2, "request")
    assert len(plain) < len(ours)
    assert bridge.decode(ShareAcknowledgeRequest, apis.SHARE_ACKNOWLEDGE, 2, "request", plain) == request(
        ShareAcknowledgeRequest, delay_ms=-1
    )


def test_their_numbers_are_beyond_kafkas_and_each_stands_once() -> None:
    for arrays in OWN_FIELDS.values():
        for lines in arrays.values():
            tags = [int(line.split(" tag ")[1].split()[0]) for line in lines if not line.startswith(" ")]
            assert tags == sorted(set(tags))
            assert tags[0] >= FIRST_OWN_TAG


TYPES = st.lists(st.integers(0, 4), min_size=1, max_size=1) | st.lists(st.integers(-128, 127), max_size=3)
OFFSETS = st.integers(-(2**63), 2**63 - 1)
PLAIN = st.tuples(OFFSETS, OFFSETS, TYPES.map(tuple))
LONGER = st.tuples(OFFSETS, OFFSETS, TYPES.map(tuple), st.integers(-1, 9), st.text(max_size=3), st.integers(0, 9))


@given(st.lists(PLAIN | LONGER, max_size=6) | st.lists(PLAIN, max_size=50), st.booleans())
def test_acknowledgements_that_are_read_in_one_go_are_what_each_by_itself_is(
    batches: list[tuple[Any, ...]], is_cut_off: bool
) -> None:
    said = tuple(AcknowledgementBatch(*one) for one in batches)
    partition = ShareFetchPartition(partition_index=1, acknowledgement_batches=said)
    sent = ShareAcknowledgeRequest(group_id="g", member_id="m", topics=(ShareFetchTopic(partitions=(partition,)),))
    body = bridge.encode(sent, apis.SHARE_ACKNOWLEDGE, 2, "request")
    if is_cut_off:
        with pytest.raises(MalformedError):
            bridge.decode(ShareAcknowledgeRequest, apis.SHARE_ACKNOWLEDGE, 2, "request", body[:-4])
    else:
        assert bridge.decode(ShareAcknowledgeRequest, apis.SHARE_ACKNOWLEDGE, 2, "request", body) == sent


def test_acknowledgements_that_are_read_in_one_go_count_as_the_elements_that_they_are() -> None:
    half = request_elements_max(apis.SHARE_ACKNOWLEDGE) // 2
    batches = tuple(AcknowledgementBatch(at, at, (1,)) for at in range(half + 1))
    partition = ShareFetchPartition(partition_index=1, acknowledgement_batches=batches)
    sent = ShareAcknowledgeRequest(group_id="g", member_id="m", topics=(ShareFetchTopic(partitions=(partition,)),))
    with pytest.raises(MalformedError, match="more than are taken"):
        bridge.decode(
            ShareAcknowledgeRequest, apis.SHARE_ACKNOWLEDGE, 2, "request",
            bridge.encode(sent, apis.SHARE_ACKNOWLEDGE, 2, "request"),
        )  # fmt: skip
