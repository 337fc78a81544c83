"""What is held and said of a partition: portions out, answers in. No message counts as settled that may not be."""

from __future__ import annotations

from uuid import uuid4

from hypothesis import given
from hypothesis import strategies as st

from clarion.client.held_partition import HeldPartition, Portion
from clarion.client.received import ReceivedMessage, Said, SettlementKind

ACK = Said(SettlementKind.ACK)
RELEASE = Said(SettlementKind.RELEASE)


def partition_with(first: int, last: int, deliveries: int = 1, told: list[int] | None = None) -> HeldPartition:
    heard = told if told is not None else []
    one = HeldPartition("orders", uuid4(), 0, lambda source: heard.append(1))
    one.begin_term(5)
    one.acquired(first, last, deliveries)
    return one


def message_of(source: HeldPartition, offset: int, deliveries: int = 1) -> ReceivedMessage:
    return ReceivedMessage(source, offset, 0, None, b"", (), deliveries)


def test_neighbours_travel_in_one_batch_with_a_word_for_each() -> None:
    source = partition_with(0, 9)
    for offset in (3, 1, 2, 7):
        message_of(source, offset).ack()
    message_of(source, 4).release()
    portion = source.take()
    assert portion is not None
    batches = [(one.first_offset, one.last_offset, one.acknowledge_types) for one in portion.batches()]
    assert batches == [(1, 4, (1, 1, 1, 2)), (7, 7, (1,))]


@given(st.sets(st.integers(0, 50), min_size=1), st.data())
def test_batches_say_of_each_offset_what_was_said(offsets: set[int], data: st.DataObject) -> None:
    said = {
        offset: data.draw(st.sampled_from([ACK, RELEASE, Said(SettlementKind.EXTEND)])) for offset in sorted(offsets)
    }
    found = {}
    last = -1
    for batch in Portion(list(said.items()), 0).batches():
        assert batch.first_offset > last
        last = batch.last_offset
        assert len(batch.acknowledge_types) == batch.last_offset - batch.first_offset + 1
        found |= dict(enumerate(batch.acknowledge_types, batch.first_offset))
    assert found == {offset: one.what for offset, one in said.items()}


def test_who_speaks_is_heard_once_per_portion() -> None:
    told: list[int] = []
    source = partition_with(0, 9, told=told)
    message_of(source, 0).ack()
    message_of(source, 1).ack()
    assert len(told) == 1
    portion = source.take()
    message_of(source, 2).ack()
    assert len(told) == 2
    assert portion is not None
    source.confirmed(portion)
    assert not source.is_settled
    second = source.take()
    assert second is not None
    source.confirmed(second)
    assert source.is_settled


def test_what_an_earlier_delivery_says_does_not_count_for_a_later_one() -> None:
    source = partition_with(0, 0)
    early = message_of(source, 0)
    source.acquired(0, 0, 2)  # its time was over, and it came again
    early.ack()
    assert source.take() is None
    assert source.take_lost() == [("orders", 0, 0)]
    assert source.held == {0: 2}


def test_a_refusal_is_narrowed_down_to_the_message_that_it_is_about() -> None:
    source = partition_with(0, 9)
    for offset in range(10):
        message_of(source, offset).ack()
    taken = set()
    for _ in range(100):
        portion = source.take()
        if portion is None:
            break
        offsets = {offset for offset, _ in portion.said}
        if 6 in offsets:
            source.refused(portion)
        else:
            source.confirmed(portion)
            taken |= offsets
    assert taken == {*range(10)} - {6}
    assert source.take_lost() == [("orders", 0, 6)]
    assert source.is_settled


def test_what_was_not_answered_is_said_again_as_it_was_and_a_refusal_then_means_that_it_was_taken() -> None:
    source = partition_with(0, 9)
    message_of(source, 0).ack()
    first = source.take()
    message_of(source, 1).ack()
    assert first is not None
    source.unanswered(first, was_sent=True)
    again = source.take()
    assert again is not None
    assert again.said == first.said
    source.refused(again)
    assert source.take_lost() == []
    assert source.has_something_to_say


def test_a_new_term_of_the_leader_ends_everything_that_was_held_of_the_old_one() -> None:
    source = partition_with(0, 9)
    message_of(source, 0).ack()
    under_way = source.take()
    message_of(source, 1).ack()
    source.begin_term(5)
    assert len(source.held) == 8
    source.begin_term(6)
    assert source.held == {}
    assert source.take() is None
    assert under_way is not None
    source.unanswered(under_way, was_sent=True)
    message_of(source, 2).ack()
    assert sorted(offset for _, _, offset in source.take_lost()) == [0, 1, 2]
    assert source.is_settled


def test_an_extension_does_not_overtake_what_was_said_and_keeps_the_message() -> None:
    source = partition_with(0, 1)
    message_of(source, 0).ack()
    source.extend([0, 1])
    portion = source.take()
    assert portion is not None
    assert [(offset, said.what) for offset, said in portion.said] == [
        (0, SettlementKind.ACK),
        (1, SettlementKind.EXTEND),
    ]
    assert portion.extends
    assert source.held == {1: 1}
    source.refused(Portion(portion.said[1:], 5))
    assert source.held == {}  # it is another's by now; nothing that was said is lost
    assert source.take_lost() == []


def test_what_is_never_settled_is_forgotten_when_more_is_held_than_can_be_locked() -> None:
    source = partition_with(0, 999)
    for first in range(1_000, 100_000, 1_000):
        source.acquired(first, first + 999, 1)
    assert sorted(source.held) == list(range(50_000, 100_000))
    source.acquired(50_000, 50_000, 2)
    source.acquired(100_000, 100_999, 1)
    assert source.held[50_000] == 2  # it came again, and is one of the newest
    assert len(source.held) == 50_000
    message_of(source, 0).ack()
    assert source.take_lost() == [("orders", 0, 0)]


def test_where_the_log_has_nothing_that_is_said() -> None:
    source = partition_with(0, 4)
    source.note_gaps([1, 3, 9])
    portion = source.take()
    assert portion is not None
    assert portion.said == [(1, Said(SettlementKind.GAP)), (3, Said(SettlementKind.GAP))]
