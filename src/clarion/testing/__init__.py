"""A real broker inside a test's process, with faults on request.

    from clarion.testing import embedded

    with embedded(topics=["orders"]) as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap})

`embedded` starts a broker in a thread of its own, `broker.faults` makes it misbehave, `plugin` gives both to pytest;
`cluster` starts several that replicate.
The names load on first use: pytest imports this room in every run, whether a test needs a broker or not.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clarion.testing.content import Message
    from clarion.testing.embedded_broker import EmbeddedBroker, embedded
    from clarion.testing.embedded_cluster import EmbeddedCluster, cluster
    from clarion.testing.errors import BrokerDownError, BrokerFailedError
    from clarion.testing.fault import Fault
    from clarion.testing.faults import Faults
    from clarion.testing.journal import Event

__all__ = [
    "BrokerDownError",
    "BrokerFailedError",
    "EmbeddedBroker",
    "EmbeddedCluster",
    "Event",
    "Fault",
    "Faults",
    "Message",
    "cluster",
    "embedded",
]

_HOMES = {
    "BrokerDownError": "errors",
    "BrokerFailedError": "errors",
    "EmbeddedBroker": "embedded_broker",
    "EmbeddedCluster": "embedded_cluster",
    "Event": "journal",
    "Fault": "fault",
    "Faults": "faults",
    "Message": "content",
    "cluster": "embedded_cluster",
    "embedded": "embedded_broker",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{home}"), name)


def __dir__() -> list[str]:
    return __all__
