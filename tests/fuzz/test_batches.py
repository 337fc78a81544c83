"""Record batches that lie: about their counts, lengths, offsets and times, or about what they decompress to.

What is taken is served as it is; whoever looks inside later (time search, compaction, deep validation) survives it.
"""

from __future__ import annotations

import random
import struct
import time
from collections.abc import Iterator

import cramjam
import pytest
from crc32c import crc32c

from clarion.model.errors import ErrorCode
from clarion.wire.batch import BatchHeader, read_header
from clarion.wire.records import encode_batch
from tests.fuzz.neighbour import Target
from tests.raw_client import RawClient
from tests.traps import words

HEADER = struct.Struct(">qiibIhiqqqhii")
NOW_MS = int(time.time() * 1000)
HOUR_MS = 3_600_000
CODECS = {"gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
PLAIN, DEEP, COMPACTED = "plain", "deep", "compacted"


@pytest.fixture(scope="module", autouse=True)
def topics(besieged: Target) -> None:
    with RawClient(besieged.bootstrap) as raw:
        words.create_topic(raw, PLAIN)
        words.create_topic(raw, DEEP, clarion_validation="deep")
        words.create_topic(
            raw, COMPACTED, cleanup_policy="compact", segment_bytes="16384", min_cleanable_dirty_ratio="0.01"
        )


@pytest.fixture
def raw(target: Target) -> Iterator[RawClient]:
    with RawClient(target.bootstrap) as client:
        yield client


def honest(count: int = 3) -> bytes:
    return bytes(encode_batch([(b"k%d" % n, b"v" * 50, (), NOW_MS) for n in range(count)]))


def lying(batch: bytes, *, good_crc: bool = True, **claims: int) -> bytes:
    """The batch with other values in its header."""
    header = read_header(batch)._replace(**claims)
    out = bytearray(HEADER.pack(*header) + batch[HEADER.size :])
    if good_crc:
        struct.pack_into(">I", out, 17, crc32c(bytes(out[21:])))
    return bytes(out)


def put(raw: RawClient, topic: str, batch: bytes, acks: int = -1) -> int:
    """The error code of the answer."""
    data = words.topic_data(topic, batch)
    answer = raw.ask("produce", 8, transactional_id=None, acks=acks, timeout=5000, topic_data=data)
    return answer.responses[0].partition_responses[0].error_code


def test_every_single_lie_in_a_header_is_refused_with_an_error(raw: RawClient):
    before = words.end_offset(raw, PLAIN)
    lies = [
        {"batch_length": length} for length in (-1, 0, 48, 60, 10_000, 2**31 - 1, -(2**31))
    ] + [
        {"record_count": count} for count in (0, -1, 2, 4, 2**31 - 1, -(2**31))
    ] + [
        {"last_offset_delta": delta} for delta in (-1, 1, 3, 2**31 - 1, -(2**31))
    ] + [
        {"magic": magic} for magic in (-1, 0, 1, 3, 127)
    ] + [
        {"attributes": bits} for bits in (0x05, 0x07, 0x08, 0x20, 0x30, 0x40, 0x80, -1, 0x7FFF)
    ] + [
        {"max_timestamp": 2**63 - 1, "base_timestamp": 2**63 - 1},
        {"max_timestamp": 2**63 - 1},
        {"max_timestamp": NOW_MS + 2 * HOUR_MS},
        {"max_timestamp": -2},
        {"max_timestamp": -(2**63)},
        {"base_timestamp": 2**63 - 1},
        {"producer_id": 5},
        {"producer_id": 5, "producer_epoch": 0},
        {"producer_id": 5, "base_sequence": 0},
        {"record_count": 2**31 - 1, "last_offset_delta": 2**31 - 2},
    ]  # fmt: skip
    for claims in lies:
        code = put(raw, PLAIN, lying(honest(), **claims))
        assert code != 0, f"{claims} was taken"
    assert put(raw, PLAIN, lying(honest(), good_crc=False, crc=1)) == ErrorCode.CORRUPT_MESSAGE
    assert words.end_offset(raw, PLAIN) == before, "something refused was written"


def test_offsets_and_epochs_in_a_batch_are_the_brokers_to_say(raw: RawClient):
    before = words.end_offset(raw, PLAIN)
    batch = lying(honest(), base_offset=2**63 - 1, leader_epoch=2**31 - 1)
    assert put(raw, PLAIN, batch) == 0
    found = read_header(words.fetch(raw, 11, PLAIN, before).records)
    assert (found.base_offset, found.leader_epoch < 2**31 - 1) == (before, True)


def test_random_damage_to_batches_is_refused_or_kept_as_it_is(raw: RawClient, chance: random.Random):
    """With its checksum made right, so that the damage gets as far as it can."""
    for topic in (PLAIN, DEEP, COMPACTED):
        for _ in range(250):
            batch = bytearray(honest(chance.randrange(1, 5)))
            for _ in range(chance.choice((1, 1, 3))):
                batch[chance.randrange(16, len(batch))] ^= 1 << chance.randrange(8)
            struct.pack_into(">I", batch, 17, crc32c(bytes(batch[21:])))
            put(raw, topic, bytes(batch))
        end = words.end_offset(raw, topic)
        for timestamp in (0, NOW_MS, NOW_MS + 100, NOW_MS + HOUR_MS, 2**62):
            assert words.list_offsets(raw, 5, topic, timestamp).error_code == 0
        assert words.list_offsets(raw, 7, topic, -3).error_code == 0
        assert words.end_offset(raw, topic) == end


def test_replicas_and_transactions_are_refused(raw: RawClient):
    wanted = [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000}]
    for replica in (0, 1, 2**31 - 1):
        answer = raw.ask("fetch", 11, **{**words.fetch_values(PLAIN, wanted), "replica_id": replica})
        assert answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    transactional = bytes(
        encode_batch([(None, b"v", (), NOW_MS)], producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)
    )
    assert put(raw, PLAIN, transactional) != 0
    control = bytes(encode_batch([(struct.pack(">hh", 0, 1), struct.pack(">hi", 0, 0), (), NOW_MS)], control=True))
    assert put(raw, PLAIN, control) == ErrorCode.INVALID_RECORD


# Bombs


def bomb(codec: str, content: bytes, **claims: int) -> bytes:
    """A batch whose compressed records are whatever they are, and whose header claims anything."""
    squeeze = {
        "gzip": cramjam.gzip.compress,
        "snappy": cramjam.snappy.compress_raw,
        "lz4": cramjam.lz4.compress,
        "zstd": cramjam.zstd.compress,
    }[codec]
    body = bytes(squeeze(content))
    claims = {"record_count": 1, "last_offset_delta": claims.get("record_count", 1) - 1, **claims}
    shell = BatchHeader(0, 49 + len(body), 0, 2, 0, CODECS[codec], 0, NOW_MS, NOW_MS, -1, -1, -1, 1)
    return lying(HEADER.pack(*shell) + body, **claims)


def tiny_records(count: int) -> bytes:
    """As many records as can be had for seven bytes or a little more each."""
    one = bytearray()
    for delta in range(count):
        varint = _zigzag(delta)
        body = b"\0\0" + varint + b"\x01\x01\0"  # attributes, time delta, offset delta, no key, no value, no headers
        one += _zigzag(len(body)) + body
    return bytes(one)


def _zigzag(number: int) -> bytes:
    number, out = number << 1, bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


@pytest.mark.parametrize("codec", CODECS)
def test_a_bomb_is_refused_where_the_door_looks_inside(target: Target, raw: RawClient, codec: str):
    size = {"snappy": 16, "lz4": 200}.get(codec, 400) << 20  # what fits into max.message.bytes
    batch = bomb(codec, bytes(size))
    assert len(batch) < 1 << 20, "too large to be a bomb"
    before = target.rss_mb()
    for _ in range(3):
        assert put(raw, DEEP, batch) == ErrorCode.INVALID_RECORD
    assert target.rss_mb() - before < 150
    target.canary.check()


@pytest.mark.parametrize("codec", CODECS)
def test_a_bomb_in_a_log_does_not_hurt_whoever_searches_by_time(target: Target, raw: RawClient, codec: str):
    late = NOW_MS + HOUR_MS // 2
    assert put(raw, PLAIN, bomb(codec, bytes(16 << 20), max_timestamp=late)) == 0
    for _ in range(3):
        found = words.list_offsets(raw, 5, PLAIN, late - 5)
        assert (found.error_code, found.offset >= 0) == (0, True)
    assert words.list_offsets(raw, 7, PLAIN, -3).error_code == 0
    target.canary.check()


@pytest.mark.parametrize("topic", [PLAIN, DEEP])
def test_millions_of_empty_records_hold_nobody_up(target: Target, raw: RawClient, topic: str):
    """Less than a megabyte that would take seconds to look through, record by record."""
    count = 1_000_000
    late = NOW_MS + HOUR_MS // 2
    batch = bomb("zstd", tiny_records(count), record_count=count, max_timestamp=late)
    assert len(batch) < 1 << 20
    put(raw, topic, batch)
    print(f"{topic}: {len(batch)} bytes; the canary waited {target.canary.check() * 1000:.0f} ms while it was written")
    words.list_offsets(raw, 5, topic, late - 5)
    print(f"{topic}: the canary waited {target.canary.check() * 1000:.0f} ms while it was searched")
