"""confluent-kafka's errors as the client's own."""

from __future__ import annotations

from typing import Any

from clarion.client.errors import ClarionError, NotAllowed, NotConnected, Timeout, UnknownTopic, refusal


def library_error(error: Any, what: str) -> ClarionError:
    """`error` is a `confluent_kafka.KafkaError`, the broker's own or, with a code below -1, the library's."""
    from confluent_kafka import KafkaError

    code = error.code()
    if code >= -1:
        return refusal(code, what, _plain(error.str()))
    if code in (KafkaError._MSG_TIMED_OUT, KafkaError._TIMED_OUT, KafkaError._TIMED_OUT_QUEUE):
        return Timeout(f"{what}: no answer in time; it may have happened all the same")
    if code in (KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION):
        return UnknownTopic(f"{what}: there is no such topic or partition any more")
    if code in (KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT, KafkaError._RESOLVE, KafkaError._SSL):
        return NotConnected(f"{what}: {_plain(error.str())}")
    if code == KafkaError._AUTHENTICATION:
        return NotAllowed(f"{what}: {_plain(error.str())}")
    return ClarionError(f"{what}: {_plain(error.str())}")


def _plain(text: str) -> str:
    words = " ".join(text.removeprefix("Broker: ").removeprefix("Local: ").split())
    return words[:1].lower() + words[1:]
