"""Which partition a key belongs to: Kafka's own rule (murmur2), the same for every way to write.

A key comes to the same partition whether the Python client, HTTP, a command, Spark's sink or a Java producer writes it.
The hash is written once: over integers for one key, over columns of unsigned 32-bit numbers for many of one length.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import iter_unpack
from typing import Any, Final

WORD_BYTES: Final = 4
_SEED: Final = 0x9747B28C
_M: Final = 0x5BD1E995
_BITS: Final = 0xFFFFFFFF  # columns drop by themselves what does not fit
_POSITIVE: Final = 0x7FFFFFFF


def partition_of_key(key: bytes, partition_count: int) -> int:
    """As Java's producer and librdkafka's `murmur2` choose it."""
    return int(partition_of_hash(murmur2(key), partition_count))


def murmur2(key: bytes) -> int:
    whole = len(key) - len(key) % WORD_BYTES
    words = (word for (word,) in iter_unpack("<I", key[:whole]))
    return int(mix(seed(len(key)), words, int.from_bytes(key[whole:], "little") if len(key) > whole else None))


def seed(size: int) -> int:
    """What the hash of a key of this size begins with."""
    return _SEED ^ size


def mix(hash_: Any, words: Iterable[Any], rest: Any | None) -> Any:
    """The hash of a key's little-endian words, and of the bytes behind them as one shorter word."""
    for word in words:
        word = word * _M & _BITS
        word ^= word >> 24
        hash_ = (hash_ * _M & _BITS) ^ (word * _M & _BITS)
    if rest is not None:
        hash_ = (hash_ ^ rest) * _M & _BITS
    hash_ = hash_ ^ (hash_ >> 13)
    hash_ = hash_ * _M & _BITS
    return hash_ ^ (hash_ >> 15)


def partition_of_hash(hash_: Any, partition_count: int) -> Any:
    return (hash_ & _POSITIVE) % partition_count
