"""Tagged fields of Clarion's own: they come through, and whoever does not know them is not bothered."""

from __future__ import annotations

import pytest

from clarion.wire import apis, bridge
from clarion.wire.cursor import FieldReader
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
