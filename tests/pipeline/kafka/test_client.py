"""The executor's client with a real broker, beside librdkafka: each reads what the other writes."""

import itertools
import time
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import Consumer, Message
from confluent_kafka import Producer as Librdkafka
from confluent_kafka import TopicPartition as Place

from clarion.model.errors import KafkaError
from clarion.model.ids import TopicPartition
from clarion.pipeline.kafka.client import Client
from clarion.pipeline.kafka.compression import CODES
from clarion.pipeline.kafka.encode import Messages, messages
from clarion.pipeline.kafka.errors import ConnectionLostError, DataLossError, RefusedRowError
from clarion.pipeline.kafka.offsets import EARLIEST, LATEST, Committed, commit_offsets, fetch_committed, list_offsets
from clarion.pipeline.kafka.partitioner import Dealer, partitions_of_keys
from clarion.pipeline.kafka.producer import IdempotentProducer, ProducerSettings
from clarion.pipeline.kafka.range_progress import OffsetRange
from clarion.pipeline.kafka.range_reader import FetchSettings, read_ranges, warn_on_loss
from clarion.pipeline.kafka.settings import ClientSettings
from clarion.pipeline.workers import kept_producer
from tests.pipeline.topics import create, delete, delete_before, fill, numbered
from tests.servers import ClarionProcess


@pytest.fixture
def client(bootstrap: str) -> Iterator[Client]:
    client = Client(ClientSettings((bootstrap,)))
    yield client
    client.close()


def values(client: Client, ranges: Sequence[OffsetRange], on_loss=None, **settings: object) -> list[tuple[int, bytes]]:
    how = {} if on_loss is None else {"on_loss": on_loss}
    out = []
    for rows, read in read_ranges(client, ranges, FetchSettings(**settings), **how):
        partitions = [read[run].partition for run in rows.run.tolist()]
        out += zip(partitions, rows.value.to_pylist(), strict=True)
    return out


def whole(client: Client, topic: str) -> list[OffsetRange]:
    info = client.topics([topic])[topic]
    places = [TopicPartition(topic, one.number) for one in info.partitions]
    first, last = (list_offsets(client, dict.fromkeys(places, when)) for when in (EARLIEST, LATEST))
    return [OffsetRange(topic, info.topic_id, tp.partition, first[tp], last[tp]) for tp in places]


def columns(contents: Sequence[bytes | None], keys: Sequence[bytes | None] | None = None) -> Messages:
    return messages(
        pa.array(keys or [None] * len(contents), pa.binary()),
        pa.array(contents, pa.binary()),
        np.arange(len(contents)) + 1000,
    )


def send(producer: IdempotentProducer, topic: str, contents: Sequence[bytes], at: int = 0, partition: int = 0) -> None:
    producer.write(
        columns(contents), [(TopicPartition(topic, partition), 0)], np.arange(len(contents), dtype=np.int64) + at
    )


# ------------------------------------------------------------------------------------------------ reading


@pytest.mark.parametrize("codec", sorted(CODES))
def test_what_librdkafka_writes_is_read(client, bootstrap, unique, codec):
    create(bootstrap, unique)
    fill(bootstrap, unique, numbered(3000), **{"compression.type": codec})
    assert values(client, whole(client, unique)) == [(0, value) for value in numbered(3000)]


def test_a_range_begins_and_ends_where_it_says(client, bootstrap, unique):
    create(bootstrap, unique)
    fill(bootstrap, unique, numbered(500))
    (everything,) = whole(client, unique)
    some = OffsetRange(unique, everything.topic_id, 0, 123, 400)
    assert values(client, [some]) == [(0, value) for value in numbered(500)[123:400]]


def test_many_partitions_are_read_by_common_requests(client, bootstrap, unique):
    create(bootstrap, unique, 8)
    for partition in range(8):
        fill(bootstrap, unique, numbered(50 + partition), partition)
    got = values(client, whole(client, unique))
    for partition in range(8):
        assert [value for where, value in got if where == partition] == numbered(50 + partition)


def test_a_partition_that_others_leave_no_room_for_is_read_later_and_not_given_up(bootstrap, unique):
    create(bootstrap, unique, 3)
    for partition in range(3):
        fill(bootstrap, unique, numbered(2000), partition, **{"batch.num.messages": 100})
    impatient = Client(ClientSettings((bootstrap,), api_timeout_ms=1))
    got = values(impatient, whole(impatient, unique), warn_on_loss, fetch_bytes=5_000)
    impatient.close()
    for partition in range(3):
        assert [value for where, value in got if where == partition] == numbered(2000)


def test_partitions_that_share_a_task_take_turns(client, bootstrap, unique):
    create(bootstrap, unique, 2)
    for partition in range(2):
        fill(bootstrap, unique, numbered(2000), partition, **{"batch.num.messages": 100})
    parts = read_ranges(client, whole(client, unique), FetchSettings(fetch_bytes=5_000))
    first_four = [one.partition for _, ranges in itertools.islice(parts, 4) for one in ranges]
    assert set(first_four) == {0, 1}


def test_two_ranges_of_one_partition_are_read_one_after_the_other(client, bootstrap, unique):
    create(bootstrap, unique)
    fill(bootstrap, unique, numbered(500), **{"batch.num.messages": 10})
    (everything,) = whole(client, unique)
    ranges = [OffsetRange(unique, everything.topic_id, 0, *bounds) for bounds in ((0, 100), (300, 500))]
    expected = [(0, value) for value in numbered(500)[:100] + numbered(500)[300:]]
    assert values(client, ranges, fetch_bytes=2_000) == expected


def test_a_batch_larger_than_a_fetch_still_comes(client, bootstrap, unique):
    create(bootstrap, unique)
    fill(bootstrap, unique, numbered(3, size=300_000), **{"batch.num.messages": 1})
    assert len(values(client, whole(client, unique), fetch_bytes=1000)) == 3


def test_rows_stay_what_they_are_while_later_ones_are_fetched(client, bootstrap, unique):
    create(bootstrap, unique)
    fill(bootstrap, unique, numbered(5000), **{"batch.num.messages": 100})
    parts = list(read_ranges(client, whole(client, unique), FetchSettings(fetch_bytes=10_000, with_headers=True)))
    assert len(parts) > 5
    assert [value for rows, _ in parts for value in rows.value.to_pylist()] == numbered(5000)
    assert [offset for rows, _ in parts for offset in rows.offset.to_pylist()] == list(range(5000))


def test_offsets_are_found_by_time(client, bootstrap, unique):
    create(bootstrap, unique, retention_ms="-1")
    with_times = Librdkafka({"bootstrap.servers": bootstrap})
    for n in range(10):
        with_times.produce(unique, b"x", partition=0, timestamp=1_700_000_000_000 + 1000 * n)
    with_times.flush(30)
    tp = TopicPartition(unique, 0)
    assert list_offsets(client, {tp: 1_700_000_004_500})[tp] == 5
    assert list_offsets(client, {tp: 1_800_000_000_000})[tp] == -1


def test_a_deleted_past_is_reported_and_can_be_skipped(client, bootstrap, unique):
    create(bootstrap, unique)
    fill(bootstrap, unique, numbered(100), **{"batch.num.messages": 10})
    (everything,) = whole(client, unique)
    delete_before(bootstrap, unique, 60)
    with pytest.raises(DataLossError, match=r"-0: offsets 0 to 59 are deleted, the log begins at 60 .*failOnDataLoss"):
        values(client, [everything])
    assert values(client, [everything], warn_on_loss) == [(0, value) for value in numbered(100)[60:]]


def test_a_topic_made_again_is_not_taken_for_the_old_one(client, bootstrap, unique):
    create(bootstrap, unique)
    fill(bootstrap, unique, numbered(10))
    old = whole(client, unique)
    delete(bootstrap, unique)
    create(bootstrap, unique)
    fill(bootstrap, unique, [b"new"] * 10)
    with pytest.raises(DataLossError, match="was deleted and made again, with offsets 0 to 9"):
        values(client, old)
    assert values(client, old, warn_on_loss) == []


def test_a_topic_made_again_with_fewer_partitions_is_reported_and_not_waited_for(client, bootstrap, unique):
    """The old partition has no leader, and never will."""
    create(bootstrap, unique, 3)
    for partition in range(3):
        fill(bootstrap, unique, numbered(10), partition)
    old = whole(client, unique)
    delete(bootstrap, unique)
    create(bootstrap, unique)
    fresh = Client(client.settings)
    began = time.monotonic()
    assert values(fresh, old, warn_on_loss) == []
    with pytest.raises(DataLossError, match="was deleted and made again, with offsets 0 to 9"):
        values(fresh, old[2:])
    assert time.monotonic() - began < client.settings.api_timeout_ms / 1000 / 4
    fresh.close()


def test_a_topic_that_is_gone_is_reported(client, bootstrap, unique):
    create(bootstrap, unique)
    fill(bootstrap, unique, numbered(10))
    old = whole(client, unique)
    delete(bootstrap, unique)
    with pytest.raises(DataLossError, match="is deleted, with offsets 0 to 9"):
        values(client, old)


# ------------------------------------------------------------------------------------------------ writing


@pytest.mark.parametrize("codec", sorted(CODES))
def test_librdkafka_reads_what_is_written(client, bootstrap, unique, codec):
    create(bootstrap, unique)
    producer = IdempotentProducer(client, ProducerSettings(compression=CODES[codec], batch_bytes_max=20_000))
    send(producer, unique, numbered(3000))
    producer.flush()
    assert producer.written[TopicPartition(unique, 0)] == 3000
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": unique, "auto.offset.reset": "earliest"})
    consumer.assign([Place(unique, 0, 0)])
    got = [one.value() for one in consumer.consume(3000, timeout=15)]
    consumer.close()
    assert got == numbered(3000)


def test_a_batch_too_large_for_its_topic_is_halved(client, bootstrap, unique):
    create(bootstrap, unique, max_message_bytes="20000")
    producer = IdempotentProducer(client, ProducerSettings())
    send(producer, unique, numbered(2000))
    send(producer, unique, numbered(2000), at=2000)
    producer.flush()
    assert values(client, whole(client, unique)) == [(0, value) for value in numbered(2000) * 2]


def test_a_small_batch_behind_a_large_one_does_not_overtake_it(client, bootstrap, unique):
    """Neither under an id that the partition has never seen, nor where it has forgotten what it has seen."""
    create(bootstrap, unique, max_message_bytes="20000")
    lines = [b"%04d " % number + b"x" * 1000 for number in range(32)]  # thirty fill a batch, the other two fit
    producer = IdempotentProducer(client, ProducerSettings(batch_bytes_max=31_000))
    producer.begin()
    send(producer, unique, lines)
    producer.flush()
    assert values(client, whole(client, unique)) == [(0, line) for line in lines]
    delete(bootstrap, unique)
    create(bootstrap, unique, max_message_bytes="10000")
    producer.begin()
    send(producer, unique, lines[:20])
    producer.flush()
    client.forget_leaders([unique])
    assert values(client, whole(client, unique)) == [(0, line) for line in lines[:20]]


def test_a_message_too_large_for_its_topic_is_refused_by_its_row(client, bootstrap, unique):
    create(bootstrap, unique, max_message_bytes="20000")
    producer = IdempotentProducer(client, ProducerSettings())
    send(producer, unique, [b"small", b"x" * 30_000, b"small"])
    with pytest.raises(RefusedRowError, match=f"row 1 is too large for {unique}"):
        producer.flush()


def test_a_keyless_message_for_a_compacted_topic_is_refused_by_its_row(client, bootstrap, unique):
    create(bootstrap, unique, cleanup_policy="compact")
    producer = IdempotentProducer(client, ProducerSettings())
    send(producer, unique, [b"x"], at=41)
    with pytest.raises(RefusedRowError, match=f"row 41 cannot be written to {unique}-0: .*key"):
        producer.flush()


def test_an_unknown_topic_is_an_error(client, unique):
    producer = IdempotentProducer(client, ProducerSettings())
    with pytest.raises(KafkaError, match=f"topic {unique}: UNKNOWN_TOPIC_OR_PARTITION"):
        send(producer, unique, [b"x"])


def test_a_topic_that_nobody_makes_is_refused_soon_and_not_waited_for_like_a_broker(tmp_path, unique, monkeypatch):
    monkeypatch.setattr("clarion.pipeline.kafka.client.CREATION_S", 0.2)
    with ClarionProcess(tmp_path / "data", env={"CLARION_AUTO_CREATE_TOPICS": "false"}) as server:
        client = Client(ClientSettings((server.bootstrap,)))
        began = time.monotonic()
        with pytest.raises(KafkaError, match=f"topic {unique} does not exist, and the broker makes none by itself"):
            client.topics([unique], may_create=True)
        assert time.monotonic() - began < client.settings.api_timeout_ms / 1000 / 2
        client.close()


def test_tasks_of_one_worker_write_under_one_producer_id(client, bootstrap, unique):
    create(bootstrap, unique)
    ids = []
    for at in range(3):
        with kept_producer(client.settings, ProducerSettings()) as producer:
            send(producer, unique, [b"task %d" % at])
        ids.append(producer._producer_id())
        assert producer.written[TopicPartition(unique, 0)] == 1, "what earlier tasks wrote is theirs"
    assert len(set(ids)) == 1
    assert values(client, whole(client, unique)) == [(0, b"task %d" % at) for at in range(3)]


def test_a_task_that_failed_leaves_its_producer_to_nobody(client, bootstrap, unique):
    create(bootstrap, unique)
    left: list[IdempotentProducer] = []

    def fail() -> None:
        with kept_producer(client.settings, ProducerSettings()) as producer:
            left.append(producer)
            send(producer, unique, [b"on its way"])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    with kept_producer(client.settings, ProducerSettings()) as producer:
        send(producer, unique, [b"whole"])
    assert producer is not left[0]
    assert values(client, whole(client, unique))[-1] == (0, b"whole")


def test_reading_and_writing_go_on_over_a_broker_that_restarts(own_server, unique):
    create(own_server.bootstrap, unique, 2)
    client = Client(ClientSettings((own_server.bootstrap,)))
    producer = IdempotentProducer(client, ProducerSettings(batch_bytes_max=5_000))
    send(producer, unique, numbered(1000))
    producer.flush()
    reading = read_ranges(client, whole(client, unique), FetchSettings(fetch_bytes=10_000))
    first, _ = next(reading)
    send(producer, unique, numbered(1000), at=1000)  # not flushed: some of it has no answer yet
    own_server.restart(kill=True)
    send(producer, unique, numbered(1000), at=2000)
    producer.flush()
    rest = itertools.chain.from_iterable(rows.value.to_pylist() for rows, _ in reading)
    assert [*first.value.to_pylist(), *rest] == numbered(1000)
    assert values(client, whole(client, unique)) == [(0, value) for value in numbered(1000) * 3]


def test_patience_ends(unique):
    settings = ClientSettings(("127.0.0.1:1",), api_timeout_ms=300, retry_backoff_ms=10)
    began = time.monotonic()
    with pytest.raises(ConnectionLostError, match="cannot be reached") as caught:
        Client(settings).topics([unique])
    assert time.monotonic() - began < 30
    assert caught.value.__notes__ == ["gave up after 0.3 s"]


def test_batches_of_another_life_are_numbered_anew(client, bootstrap, unique):
    """A broker that lost our last batches expects an older sequence; the writer starts again under a new id."""
    create(bootstrap, unique)
    producer = IdempotentProducer(client, ProducerSettings())
    send(producer, unique, [b"one"])
    producer.flush()
    producer._sequences[TopicPartition(unique, 0)] = 77
    send(producer, unique, [b"two"], at=1)
    producer.flush()
    assert values(client, whole(client, unique)) == [(0, b"one"), (0, b"two")]


# ------------------------------------------------------------------------------------------------ groups, partitions


def test_offsets_are_stored_under_a_groups_name(client, bootstrap, unique):
    create(bootstrap, unique, 2)
    offsets = {TopicPartition(unique, 0): 5, TopicPartition(unique, 1): 7}
    commit_offsets(client, unique, offsets, metadata="first", timeout_ms=10_000)
    stored = fetch_committed(client, unique, [*offsets, TopicPartition(unique, 9)])
    assert stored == {tp: Committed(offset, "first") for tp, offset in offsets.items()}


def test_keys_go_where_librdkafka_would_send_them(client, bootstrap, unique):
    create(bootstrap, unique, 7)
    keys = [b"k" * (n % 23) + b"%d" % n for n in range(200)] + [b""]
    producer = Librdkafka({"bootstrap.servers": bootstrap, "partitioner": "murmur2"})
    chosen: dict[bytes, int] = {}

    def note(_: object, message: Message) -> None:
        chosen[message.key() or b""] = message.partition()

    for key in keys:
        producer.produce(unique, b"v", key=key, on_delivery=note)
    producer.flush(30)
    ours = partitions_of_keys(pa.array([*keys, None]).slice(0), 7).tolist()
    assert ours == [*(chosen[key] for key in keys), -1]


def test_messages_without_a_key_are_dealt_in_runs():
    dealer = Dealer(run_bytes=100)
    sizes = np.full(10, 30)
    assert dealer.deal(sizes, 2).tolist() == [0, 0, 0, 0, 1, 1, 1, 0, 0, 0]
    assert dealer.deal(sizes, 2).tolist()[:2] == [1, 1]
