"""What goes in comes out: bytes, keys, headers, times, order, whoever writes and whoever reads."""

import time

import pytest

from tests.clients.adapters import Confluent
from tests.clients.adapters.model import COMPRESSIONS, EARLIEST, LATEST, Client, Outgoing
from tests.waiting import wait_for

ALL_BYTES = bytes(range(256))


def now_ms() -> int:
    return int(time.time() * 1000)


@pytest.mark.needs("admin", "acks", "timestamps", "binary")
def test_keys_headers_timestamps_and_values_come_back_byte_for_byte(client: Client, unique: str) -> None:
    client.create_topic(unique, 2)
    at = now_ms() - 60_000
    sent = [
        Outgoing(ALL_BYTES, ALL_BYTES[::-1], (("trace", b"\x00\xff"), ("trace", b"twice"), ("empty", b"")), 1, at),
        Outgoing(b"", b"empty value", (), 1, at + 1),
        Outgoing("żółć 🎺".encode(), None, (("naïve", "ü".encode()),), 1, at + 2),
        Outgoing(None, b"tombstone", (), 1, at + 3),
    ]
    acks = client.produce(unique, sent)
    assert acks == [(1, 0), (1, 1), (1, 2), (1, 3)]
    for expected, found in zip(sent, client.read(unique, 1, EARLIEST, 4), strict=True):
        assert (found.value, found.key, found.headers) == (expected.value, expected.key, expected.headers)
        assert (found.topic, found.partition, found.timestamp_ms) == (unique, 1, expected.timestamp_ms)


@pytest.mark.needs("null-headers")
def test_a_header_without_a_value_stays_without_one(client: Client, topic: str) -> None:
    client.produce(topic, [Outgoing(b"v", headers=(("none", None), ("some", b"x")))])
    assert client.read(topic, 0, EARLIEST, 1)[0].headers == (("none", None), ("some", b"x"))


def test_text_messages_arrive_in_order_with_key_and_headers(client: Client, topic: str) -> None:
    sent = [Outgoing(b"value %d" % n, b"key %d" % n, (("a", b"1"), ("b", b"2"))) for n in range(100)]
    client.produce(topic, sent)
    found = client.read(topic, 0, EARLIEST, 100)
    assert [(m.value, m.key, m.headers) for m in found] == [(r.value, r.key, r.headers) for r in sent]
    assert [m.offset for m in found] == list(range(100))


def test_every_client_puts_a_key_into_the_same_partition(client: Client, admin: Confluent, unique: str) -> None:
    admin.create_topic(unique, 8)
    keys = [b"key-%d" % n for n in range(40)]
    client.produce(unique, [Outgoing(key, key) for key in keys])
    placed = {m.key: m.partition for m in admin.read_all(unique, 8, len(keys))}
    assert placed == {key: _murmur2(key) % 8 for key in keys}


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_a_batch_passes_with_each_compression_from_each_client_to_each_client(
    writer: Client, admin: Client, unique: str, compression: str, every_reader: list[Client]
) -> None:
    if reason := writer.why_no_codec(compression):
        pytest.skip(reason)
    admin.create_topic(unique)
    sent = [Outgoing(b"%04d" % n + b" lorem ipsum dolor sit amet" * 20) for n in range(50)]
    writer.produce(unique, sent, compression=compression)
    for reader in every_reader:
        if not reader.why_no_codec(compression):
            found = reader.read(unique, 0, EARLIEST, len(sent))
            assert [m.value for m in found] == [r.value for r in sent], f"read by {reader.name}"


@pytest.mark.parametrize("compression", ["uncompressed", *(one for one in COMPRESSIONS if one != "none")])
def test_every_client_reads_what_the_broker_compressed_anew(
    admin: Client, unique: str, compression: str, every_reader: list[Client]
) -> None:
    admin.create_topic(unique, config={"compression.type": compression})
    sent = [Outgoing(b"%04d" % n + b" lorem ipsum dolor sit amet" * 20, b"%d" % (n % 7)) for n in range(300)]
    admin.produce(unique, sent[:150])
    admin.produce(unique, sent[150:], compression="gzip")
    for reader in every_reader:
        if compression == "uncompressed" or not reader.why_no_codec(compression):
            found = reader.read(unique, 0, EARLIEST, len(sent))
            assert [(m.value, m.key) for m in found] == [(r.value, r.key) for r in sent], f"read by {reader.name}"


def test_many_batches_arrive_complete_and_in_order(client: Client, topic: str, admin: Client) -> None:
    """More than fits into one answer: 6 MB, against the usual limit of 1 MB for a partition."""
    sent = [b"%05d" % n + b"x" * 995 for n in range(6000)]
    admin.produce(topic, [Outgoing(value) for value in sent])
    assert [m.value for m in client.read(topic, 0, EARLIEST, len(sent))] == sent


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_reading_from_the_middle_of_a_batch_starts_at_the_wanted_message(
    client: Client, admin: Client, unique: str, compression: str
) -> None:
    admin.create_topic(unique)
    admin.produce(unique, [Outgoing(b"%d" % n) for n in range(100)], compression=compression)
    found = client.read(unique, 0, 42, 58)
    assert [(m.offset, m.value) for m in found] == [(n, b"%d" % n) for n in range(42, 100)]


def test_a_waiting_reader_gets_a_message_at_once(client: Client, topic: str, admin: Client) -> None:
    """The long poll answers when something arrives, not when its time is up."""
    admin.produce(topic, [Outgoing(b"first")])
    with _Member(client, f"{topic}-group", topic) as member:
        member.wait_for(b"first")
        delays = []
        for n in range(20):
            value = b"second %d" % n
            admin.produce(topic, [Outgoing(value)])
            acknowledged = time.monotonic()
            member.wait_for(value)
            delays.append(time.monotonic() - acknowledged)
            if delays[-1] < 0.25:
                break  # twenty chances for a client that a busy machine keeps from its core; one shows it
    assert min(delays) < 0.25, f"a message took {delays} s"


def test_reading_from_the_end_sees_only_what_comes_later(topic: str, admin: Client, client: Client) -> None:
    admin.produce(topic, [Outgoing(b"old %d" % n) for n in range(10)])
    end = client.offset_for(topic, 0, LATEST)
    assert end == 10
    admin.produce(topic, [Outgoing(b"new")])
    assert client.read(topic, 0, end, 1)[0].value == b"new"


class _Member:
    """A group member that remembers what it saw."""

    def __init__(self, client: Client, group: str, topic: str) -> None:
        self._member = client.member(group, [topic])
        self._seen: list[bytes | None] = []

    def __enter__(self) -> "_Member":
        return self

    def __exit__(self, *_: object) -> None:
        self._member.close()

    def wait_for(self, value: bytes) -> None:
        def arrived() -> bool:
            if value not in self._seen:
                self._seen.extend(m.value for m in self._member.poll(0.5))
            return value in self._seen

        wait_for(arrived, what=f"{value!r}")


def _murmur2(key: bytes) -> int:
    """Kafka's default partitioning hash, from its published constants."""
    mask, m = 0xFFFFFFFF, 0x5BD1E995
    h = 0x9747B28C ^ len(key)
    for at in range(0, len(key) - 3, 4):
        k = int.from_bytes(key[at : at + 4], "little") * m & mask
        h = (h * m & mask) ^ ((k ^ k >> 24) * m & mask)
    if tail := key[len(key) & ~3 :]:
        h = (h ^ int.from_bytes(tail, "little")) * m & mask
    h = (h ^ h >> 13) * m & mask
    return (h ^ h >> 15) & 0x7FFFFFFF
