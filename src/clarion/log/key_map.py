"""The last offset of every key, in a fixed amount of memory.

A table of 24 bytes per slot with linear probing: a digest of the key and an offset. A dictionary would take eight times
as much. Keys are told apart by 128 bits: short ones by themselves, long ones by BLAKE2, so that nobody can make two
keys collide and have one delete the other. Where a key is looked for depends on Python's seeded hash, so that nobody
can make the table slow either.
"""

from __future__ import annotations

from array import array
from hashlib import blake2b
from typing import Final

_DIGEST_BYTES: Final = 16
SLOT_BYTES: Final = _DIGEST_BYTES + 8
_LOAD_MAX: Final = 0.8  # linear probing takes about three looks then; it gets steep after
_FREE: Final = -1


class KeyMap:
    def __init__(self, memory_bytes_max: int, keys_wanted: int) -> None:
        """Room for `keys_wanted` keys, or as many as the memory allows."""
        self._slots = max(2, min(memory_bytes_max // SLOT_BYTES, int(keys_wanted / _LOAD_MAX) + 1))
        self._digests = bytearray(self._slots * _DIGEST_BYTES)
        self._offsets = array("q", [_FREE]) * self._slots
        self.keys_max = int(self._slots * _LOAD_MAX)
        self.key_count = 0

    @property
    def is_full(self) -> bool:
        return self.key_count >= self.keys_max

    def put(self, key: bytes, offset: int) -> None:
        """Offsets come in rising order. The caller stops when the map is full."""
        digest = _digest(key)
        slot = self._slot_of(digest)
        if self._offsets[slot] == _FREE:
            at = slot * _DIGEST_BYTES
            self._digests[at : at + _DIGEST_BYTES] = digest
            self.key_count += 1
        self._offsets[slot] = offset

    def get(self, key: bytes) -> int:
        """The last offset of the key, or -1 if it was not seen."""
        return self._offsets[self._slot_of(_digest(key))]

    def _slot_of(self, digest: bytes) -> int:
        """The slot of a digest, or the free one where it belongs."""
        offsets, digests, slots = self._offsets, self._digests, self._slots
        slot = hash(digest) % slots
        while offsets[slot] != _FREE:
            at = slot * _DIGEST_BYTES
            if digests[at : at + _DIGEST_BYTES] == digest:
                return slot
            slot = slot + 1 if slot + 1 < slots else 0
        return slot


_LENGTHS: Final = tuple(bytes([n]) for n in range(_DIGEST_BYTES))


def _digest(key: bytes) -> bytes:
    length = len(key)
    if length < _DIGEST_BYTES:
        return key.ljust(_DIGEST_BYTES - 1, b"\0") + _LENGTHS[length]
    return blake2b(key, digest_size=_DIGEST_BYTES).digest()
