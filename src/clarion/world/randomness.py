"""Ids that nobody can guess."""

from __future__ import annotations

import os
from typing import Protocol
from uuid import UUID


class Randomness(Protocol):
    def bytes(self, count: int) -> bytes: ...


class SystemRandomness:
    def bytes(self, count: int) -> bytes:
        return os.urandom(count)


def new_uuid(randomness: Randomness) -> UUID:
    """A random UUID whose base64 form does not begin with a dash, which command lines would take for an option."""
    while True:
        fresh = UUID(bytes=randomness.bytes(16), version=4)
        if fresh.bytes[0] >> 2 != 62:
            return fresh


def new_session_id(randomness: Randomness) -> int:
    """A positive 32-bit number."""
    return (int.from_bytes(randomness.bytes(4), "big") & 0x7FFFFFFF) or 1
