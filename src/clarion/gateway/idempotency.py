"""Idempotency keys: a write that is repeated with the same key is written once, and answered with the same offset.

A key is made a producer of Kafka's idempotent protocol: the producer's id is a hash of the key, in a range of its own,
and the sequence of its only batch is a hash of the message. So the partition's own producer state tells a repetition
from a new write, and is on disk, replicated and handed over as it is for any producer. A repetition with another
message has another sequence, which is out of order: 422. How long keys are remembered: `replication.producers`.

The partition must be the same each time: the one that is named, or the key's, or else one that the idempotency key
decides.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Final, NamedTuple

from clarion.broker.authorizer import Principal
from clarion.gateway.message_forms import MessageToWrite
from clarion.replication.producers import FIRST_KEYED_ID

_ID_BITS: Final = 61
_SEQUENCE_MASK: Final = 0x7FFFFFFF
_EPOCH: Final = 0


class KeyedProducer(NamedTuple):
    """As whom a message with an idempotency key is written."""

    producer_id: int
    producer_epoch: int
    base_sequence: int


def keyed_producer(who: Principal, key: str, message: MessageToWrite) -> KeyedProducer:
    owner = sha256("\0".join((who.kind, who.name, key)).encode()).digest()
    producer_id = FIRST_KEYED_ID | int.from_bytes(owner[:8], "big") >> 64 - _ID_BITS
    return KeyedProducer(producer_id, _EPOCH, _fingerprint(message))


def partition_of_idempotency_key(key: str, partition_count: int) -> int:
    return int.from_bytes(sha256(key.encode()).digest()[8:16], "big") % partition_count


def _fingerprint(message: MessageToWrite) -> int:
    """Of all that the client has said about the message; each part with its length, so that none runs into the next."""
    parts = [message.key, message.value, *(part for name, value in message.headers for part in (name.encode(), value))]
    if message.timestamp_ms is not None:
        parts.append(b"%d" % message.timestamp_ms)
    digest = sha256()
    for part in parts:
        digest.update(b"-" if part is None else b"%d:" % len(part) + part)
    return int.from_bytes(digest.digest()[:4], "big") & _SEQUENCE_MASK
