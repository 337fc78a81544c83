"""Which partition of `__consumer_offsets` a group lives in."""

from __future__ import annotations


def partition_for(group_id: str, partition_count: int) -> int:
    """Kafka's rule, so that its tools look in the right place: the absolute Java hash modulo the partitions."""
    hashed = java_hash(group_id)
    return (0 if hashed == -(2**31) else abs(hashed)) % partition_count


def java_hash(text: str) -> int:
    """`String.hashCode`: over UTF-16 code units, wrapped to a signed 32-bit number."""
    hashed = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(units), 2):
        hashed = (31 * hashed + (units[at] << 8 | units[at + 1])) & 0xFFFFFFFF
    return hashed - 2**32 if hashed >= 2**31 else hashed
