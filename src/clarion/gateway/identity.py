"""Who asks over HTTP. There is no authentication yet: everybody is the same, as on Kafka's port."""

from __future__ import annotations

from clarion.broker.authorizer import ANONYMOUS, Principal


def principal() -> Principal:
    return ANONYMOUS
