"""A queue is read by however many readers there are; each message is settled once, and is not lost."""

from __future__ import annotations

import gc
import threading
import time
from itertools import islice

import pytest

import clarion
from clarion.client.bus import Bus
from clarion.testing import EmbeddedBroker

from .words import PATIENCE_SECONDS, queue_settings, take, wait_for


@pytest.fixture
def queue(broker: EmbeddedBroker, topic: str) -> str:
    """A queue of the topic with its name, which begins at the topic's start."""
    queue_settings(broker.bootstrap, topic)
    return topic


def test_messages_are_acknowledged_one_by_one_and_do_not_come_again(bus: Bus, queue: str) -> None:
    bus.write_many(queue, [(f"k{number}", f"{number}") for number in range(100)])
    with bus.read(queue, subscription=queue, mode="queue") as reading:
        seen = take(reading, 100)
        assert sorted(int(one.text) for one in seen) == list(range(100))
        assert {(one.key, one.topic, one.deliveries) for one in seen} == {
            (f"k{number}".encode(), queue, 1) for number in range(100)
        }
        for one in reversed(seen):
            one.ack()
            one.ack()  # the same again does no harm
        reading.flush()
    bus.write(queue, "after")
    with bus.read(queue, subscription=queue) as reading:  # known by now as a queue
        assert [one.text for one in take(reading, 1)] == ["after"]


def test_a_released_message_comes_again_and_a_rejected_one_does_not(bus: Bus, queue: str) -> None:
    bus.write_many(queue, [{"value": word, "partition": 0} for word in ("done", "again", "bad")])
    with bus.read(queue, subscription=queue, mode="queue") as reading:
        done, again, bad = take(reading, 3)
        done.ack()
        again.release()
        bad.reject("cannot be read")
        with pytest.raises(clarion.InvalidRequest, match="was settled before, otherwise: release"):
            again.ack()
        (once_more,) = take(reading, 1)
        assert (once_more.text, once_more.deliveries) == ("again", 2)
        once_more.ack()
        reading.flush()
        assert reading.batch(timeout=0.3) == []


def test_what_was_not_settled_goes_to_others_when_its_reader_leaves(bus: Bus, queue: str) -> None:
    bus.write_many(queue, [b"%d" % number for number in range(30)])
    first = bus.read(queue, subscription=queue, mode="queue")
    seen = take(first, 30)
    for one in seen[:10]:
        one.ack()
    first.close()  # what was said is durable by then
    with bus.read(queue, subscription=queue, mode="queue") as second:
        left = take(second, 20)
        assert {one.value for one in left} == {one.value for one in seen[10:]}
        assert {one.deliveries for one in left} == {1}, "they were fetched and never worked on"
        for one in left:
            one.ack()
        second.flush()
        assert second.batch(timeout=0.3) == []


def test_readers_share_the_work_though_they_outnumber_the_partitions(bus: Bus, queue: str) -> None:
    count, seen, may_go_on = 400, [], threading.Event()
    readings = [bus.read(queue, subscription=queue, mode="queue", prefetch=10) for _ in range(8)]

    def work(number: int) -> None:
        for message in readings[number]:
            seen.append((number, message.text))
            may_go_on.wait(PATIENCE_SECONDS)
            message.ack()

    workers = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for one in workers:
        one.start()
    bus.write_many(queue, [{"value": f"{number}", "partition": number % 3} for number in range(count)])
    wait_for(lambda: len({number for number, _ in seen}) > 3)  # more than there are partitions
    may_go_on.set()
    wait_for(lambda: len(seen) >= count)
    for reading in readings:
        reading.close()
    for one in workers:
        one.join(60)
    assert sorted(int(text) for _, text in seen) == list(range(count))


def test_an_iteration_ends_when_nothing_comes_and_can_go_on(bus: Bus, queue: str) -> None:
    reading = bus.read(queue, subscription=queue, mode="queue", timeout=0.2)
    assert list(reading) == []
    bus.write(queue, "late")
    (late,) = take(reading, 1)
    late.ack()
    reading.close()
    assert list(reading) == []


def test_who_leaves_a_loop_in_the_middle_finds_the_rest_the_next_time(bus: Bus, queue: str) -> None:
    bus.write_many(queue, [{"value": b"%d" % number, "partition": 0} for number in range(10)])
    with bus.read(queue, subscription=queue, mode="queue") as reading:
        first = list(islice(reading, 3))
        rest = take(reading, 7)
        assert len({message.offset for message in [*first, *rest]}) == 10


def test_a_message_is_kept_for_as_long_as_its_reader_wants(broker: EmbeddedBroker, bus: Bus, topic: str) -> None:
    queue_settings(broker.bootstrap, topic, record_lock_duration_ms=15_000)
    bus.write(topic, "slow")
    with bus.read(topic, subscription=topic, mode="queue") as reading:
        (slow,) = take(reading, 1)
        slow.extend()
        reading.flush()
        slow.ack()
        reading.flush()
        with pytest.raises(clarion.InvalidRequest, match="nothing to extend"):
            slow.extend()


def test_where_locks_are_not_renewed_what_is_held_stays_so_until_they_end(
    broker: EmbeddedBroker, bus: Bus, topic: str
) -> None:
    queue_settings(broker.bootstrap, topic, renew_acknowledge_enable="false")
    with pytest.raises(clarion.Unsupported, match="leave renew out"):
        bus.read(topic, subscription=topic, mode="queue", renew=True)
    for number in range(3):
        bus.write(topic, number, f"{number}")
    with bus.read(topic, subscription=topic, mode="queue") as reading:
        first, second, third = take(reading, 3)
        with pytest.raises(clarion.Unsupported, match=r"renews no locks \(share.renew.acknowledge.enable\)"):
            first.extend()
        second.ack()
        reading.flush()
        first.ack()
        third.ack()
        reading.flush()


def test_an_extension_is_told_where_renewals_were_switched_off_meanwhile(
    broker: EmbeddedBroker, bus: Bus, topic: str
) -> None:
    queue_settings(broker.bootstrap, topic)
    bus.write(topic, 0, "slow")
    with bus.read(topic, subscription=topic, mode="queue") as reading:
        (slow,) = take(reading, 1)
        queue_settings(broker.bootstrap, topic, renew_acknowledge_enable="false")
        slow.extend()
        with pytest.raises(clarion.NotAcknowledged, match=f"{topic}-0@0"):
            reading.flush()
        with pytest.raises(clarion.Unsupported):
            slow.extend()
        slow.ack()
        reading.flush()


def test_a_release_can_wait_and_a_lock_can_be_longer_than_usual(bus: Bus, queue: str) -> None:
    bus.write_many(queue, [{"value": word, "partition": 0} for word in ("later", "longer")])
    with bus.read(queue, subscription=queue, mode="queue") as reading:
        later, longer = take(reading, 2)
        longer.extend("10m")
        released = time.monotonic()
        later.release(delay="1s")
        (again,) = take(reading, 1)
        assert (again.text, again.deliveries) == ("later", 2)
        assert time.monotonic() - released > 0.9
        again.ack()
        longer.ack()
        reading.flush()


def test_a_loop_that_was_left_gives_back_what_it_has_not_settled(broker: EmbeddedBroker, bus: Bus) -> None:
    queue = bus.create("left-in-the-middle", partitions=1).name
    queue_settings(broker.bootstrap, queue)
    bus.write_many(queue, [b"%d" % number for number in range(5)])
    for message in bus.read(queue, subscription=queue, mode="queue"):
        message.ack()
        break
    del message
    gc.collect()  # nobody holds the reading any more, and nobody has closed it
    with bus.read(queue, subscription=queue, mode="queue") as reading:
        assert sorted(one.value or b"" for one in take(reading, 4)) == [b"1", b"2", b"3", b"4"]


def test_what_is_said_too_late_is_told_by_flush(bus: Bus, queue: str) -> None:
    bus.write(queue, "one")
    first = bus.read(queue, subscription=queue, mode="queue")
    (message,) = take(first, 1)
    first.close()
    with pytest.raises(clarion.ClosedError):
        message.ack()  # it is nobody's any more
    with pytest.raises(clarion.NotAcknowledged) as caught:
        first.flush()
    assert caught.value.places == [(queue, message.partition, message.offset)]


def test_a_queue_with_compressed_batches_and_headers(broker: EmbeddedBroker, queue: str) -> None:
    with clarion.connect(broker.bootstrap, settings={"compression.type": "lz4", "linger.ms": 50}) as bus:
        bus.write_many(queue, [{"value": b"x" * 500, "headers": {"n": f"{n}"}, "partition": 1} for n in range(50)])
        with bus.read(queue, subscription=queue, mode="queue") as reading:
            seen = take(reading, 50)
            assert [one.headers for one in seen] == [(("n", b"%d" % n),) for n in range(50)]
            assert {one.value for one in seen} == {b"x" * 500}


def test_what_compaction_has_left_out_is_passed_over(broker: EmbeddedBroker, bus: Bus) -> None:
    bus.create("compacted", settings={"cleanup.policy": "compact"})
    queue_settings(broker.bootstrap, "compacted")
    bus.write_many("compacted", [(f"k{number % 3}", f"{number}") for number in range(30)])
    broker.run_housekeeping()
    with bus.read("compacted", subscription="compacted", mode="queue") as reading:
        seen = take(reading, 3)
        assert [one.text for one in seen] == ["27", "28", "29"]
        for one in seen:
            one.ack()
        reading.flush()
        assert reading.batch(timeout=0.3) == []


def test_the_name_of_a_stream_cannot_be_read_as_a_queue(bus: Bus, topic: str) -> None:
    bus.write(topic, "x")
    with bus.read(topic, subscription=topic, mode="stream") as stream:
        take(stream, 1)
        with pytest.raises(clarion.ClarionError, match="join queue"):
            bus.read(topic, subscription=topic, mode="queue")


def test_what_is_said_of_a_message_whose_reading_has_ended_is_refused(bus: Bus, queue: str) -> None:
    """As in `messages = list(bus.read(...))`: nobody holds the reading, and its messages go to others."""
    bus.write_many(queue, ["said before", "said after"])
    with bus.read(queue, subscription=queue, mode="queue") as reading:
        before, after = take(reading, 2)
        before.ack()
    before.ack()  # the same again does no harm
    for say in (after.ack, after.release, after.reject, after.extend):
        with pytest.raises(clarion.ClosedError, match="has ended, and others get it"):
            say()
    with bus.read(queue, subscription=queue, mode="queue") as reading:
        (again,) = take(reading, 1)
        assert again.value == after.value
