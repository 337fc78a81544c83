"""Clarion: a durable, log-based publish-subscribe broker that speaks Kafka's wire protocol.

`connect` and `connect_async` are the Python client (`clarion.client`, docs/python.md); they load on first use.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False  # as of typing, whose import would take longer than all the rest here
__version__ = "0.1.0"

if TYPE_CHECKING:
    from clarion.client.async_bus import AsyncBus, connect_async
    from clarion.client.bus import Bus, connect
    from clarion.client.errors import (
        ClarionError,
        ClosedError,
        InvalidRequest,
        MessageTooLarge,
        NotAcknowledged,
        NotAllowed,
        NotAQueue,
        NotConnected,
        SubscriptionExists,
        Timeout,
        TopicExists,
        UnknownSubscription,
        UnknownTopic,
        Unsupported,
    )
    from clarion.client.received import ReceivedMessage

__all__ = [
    "AsyncBus",
    "Bus",
    "ClarionError",
    "ClosedError",
    "InvalidRequest",
    "MessageTooLarge",
    "NotAQueue",
    "NotAcknowledged",
    "NotAllowed",
    "NotConnected",
    "ReceivedMessage",
    "SubscriptionExists",
    "Timeout",
    "TopicExists",
    "UnknownSubscription",
    "UnknownTopic",
    "Unsupported",
    "__version__",
    "connect",
    "connect_async",
]

_HOMES = {
    **dict.fromkeys(("Bus", "connect"), "bus"),
    **dict.fromkeys(("AsyncBus", "connect_async"), "async_bus"),
    "ReceivedMessage": "received",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    found: object = getattr(import_module(f"{__name__}.client.{_HOMES.get(name, 'errors')}"), name)
    return found


def __dir__() -> list[str]:
    return [*globals(), *__all__]


if os.environ.get("CLARION_COMPILED") == "1":
    from clarion.compiled import choose

    choose(is_command=False)
