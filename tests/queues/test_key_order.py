"""The order of keys, where it is hard to keep: too many wait, or it is asked for while records are under way."""

from __future__ import annotations

import pytest

from clarion.queues import key_order
from clarion.queues.acknowledgements import Acknowledgement, AcknowledgeType
from clarion.queues.acquisition import Acquired, AcquireMode, Fate, Readable
from clarion.queues.rules import ShareLimits
from clarion.queues.share_partition import SharePartition

LIMITS = ShareLimits(lock_duration_ms=1_000, deliveries_max=3, in_flight_max=100)
IN_ORDER = LIMITS._replace(keeps_key_order=True)


def take(one: SharePartition, keys: dict[int, int], now_ms: int = 0) -> list[Acquired]:
    """What a member gets of a log with these records: the key of each offset."""
    first, end = one.fetch_offset(now_ms), max(keys) + 1
    if first is None or first >= end:
        return []
    spans = [(at, at) for at in range(first, end)]
    read = Readable(first, end, spans, [Fate(key=keys[at]) for at in range(first, end)])
    return one.acquire("a", read, 500, AcquireMode.RECORD_LIMIT, now_ms)


def accept(one: SharePartition, offset: int) -> None:
    one.acknowledge("a", [Acknowledgement(offset, offset, (AcknowledgeType.ACCEPT,))], 0)


def in_order() -> SharePartition:
    one = SharePartition(IN_ORDER, 0)
    one.learn([])
    return one


@pytest.mark.uncompiled
def test_where_too_many_wait_for_their_keys_none_is_overtaken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_order, "WAITING_MAX", 5)
    keys = dict(enumerate([1] * 6 + [2, 2, 2]))
    one = in_order()
    assert take(one, keys) == [(0, 0, 1)], "five wait for the first; what follows is left alone until there is room"
    assert (take(one, keys), one.next_offset) == ([], 6)
    delivered = []
    for done in range(6):
        accept(one, done)
        delivered += [run.first for run in take(one, keys)]
    assert delivered == [1, 6, 2, 3, 4, 5]
    for done in (6, 7, 8):
        accept(one, done)
        delivered += [run.first for run in take(one, keys)]
    assert delivered[-2:] == [7, 8]
    assert one.start_offset == 9


def test_a_record_that_waits_for_its_key_is_counted_once_however_often_it_is_looked_at() -> None:
    order = key_order.KeyOrder()
    assert order.claim(1, 0)
    for _ in range(2):
        order.wait(1, 50)
    assert order.free(0, 0) == [50]
    assert order.free(50, 50) == []


@pytest.mark.parametrize("is_released", [False, True])
def test_of_records_that_were_under_way_when_the_order_was_asked_for_the_last_lets_the_next_go(
    is_released: bool,
) -> None:
    one = SharePartition(LIMITS, 0)
    keys = dict.fromkeys(range(3), 7)
    one.acquire("a", Readable(0, 2, [(0, 1)]), 500, AcquireMode.BATCH_OPTIMIZED, 0)
    if is_released:
        later = Acknowledgement(1, 1, (AcknowledgeType.RELEASE,), delay_ms=500)
        one.acknowledge("a", [later], 0)
    one.use(IN_ORDER)
    one.learn([(0, 7), (1, 7)])
    assert take(one, keys) == []
    accept(one, 0)
    assert take(one, keys) == [], "the second is in somebody's hands, or waits to come again"
    if is_released:
        assert take(one, keys, now_ms=500) == [(1, 1, 2)]
    accept(one, 1)
    assert take(one, keys) == [(2, 2, 1)]


def test_an_order_that_is_not_wanted_any_more_when_its_keys_are_known_is_not_kept() -> None:
    """What is delivered from then on is not noted; who wants the order again has the keys learnt again."""
    one = SharePartition(IN_ORDER, 0)
    one.use(LIMITS)
    one.learn([])
    assert one.keys is None
