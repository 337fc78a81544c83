"""A key's partition is Kafka's."""

from __future__ import annotations

import pytest

from clarion.model.key_hash import murmur2, partition_of_key


@pytest.mark.parametrize(
    ("key", "as_java_says"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
        (b"", 275646681),
    ],
)
def test_keys_hash_as_in_java(key: bytes, as_java_says: int) -> None:
    assert murmur2(key) == as_java_says & 0xFFFFFFFF


def test_a_hash_with_its_highest_bit_set_still_has_a_partition() -> None:
    assert murmur2(b"foobar") >> 31 == 1
    assert partition_of_key(b"foobar", 7) == (murmur2(b"foobar") & 0x7FFFFFFF) % 7
