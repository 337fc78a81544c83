"""How the endpoints of push subscriptions are doing: written by who pushes, read by metrics and who describes one."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final

from clarion.broker.metrics_page import Metric, Sample
from clarion.model.histogram import Histogram

_SUBSCRIPTION: Final = ("subscription",)

DELIVERIES: Final = Metric(
    "clarion_push_messages_total",
    "counter",
    "Messages pushed to endpoints, by what came of it: delivered, failed (they come again, unless given up), dropped "
    "(failed where they are sent at most once).",
    ("subscription", "outcome"),
)
UNDER_WAY: Final = Metric(
    "clarion_push_requests_in_flight", "gauge", "Requests to an endpoint that are not answered yet.", _SUBSCRIPTION
)
WINDOW: Final = Metric(
    "clarion_push_window_requests", "gauge", "Requests that an endpoint may be sent at a time.", _SUBSCRIPTION
)
CIRCUIT: Final = Metric(
    "clarion_push_circuit_open",
    "gauge",
    "Whether an endpoint is left alone because it fails: 0 no, 1 yes, 0.5 while one request finds out.",
    _SUBSCRIPTION,
)
SECONDS: Final = Metric(
    "clarion_push_duration_seconds", "histogram", "From a request to an endpoint to its answer.", _SUBSCRIPTION
)
OF_ENDPOINTS: Final = (DELIVERIES, UNDER_WAY, WINDOW, CIRCUIT, SECONDS)

_CIRCUITS: Final = {"closed": 0.0, "half-open": 0.5, "open": 1.0}


class EndpointHealth:
    """One subscription's, since this broker has begun to push for it."""

    __slots__ = (
        "circuit",
        "delivered_total",
        "dropped_total",
        "durations",
        "failed_total",
        "last_failure",
        "last_failure_ms",
        "last_success_ms",
        "stopped",
        "under_way",
        "window",
    )

    def __init__(self) -> None:
        self.circuit = "closed"
        self.window = 0
        self.under_way = 0
        self.delivered_total = 0  # messages
        self.failed_total = 0
        self.dropped_total = 0
        self.durations = Histogram()
        self.last_success_ms = 0
        self.last_failure_ms = 0
        self.last_failure = ""  # in words
        self.stopped = ""  # why nothing is pushed any longer

    @property
    def state(self) -> str:
        if self.stopped:
            return "stopped"
        if self.circuit != "closed":
            return "resting"
        return "failing" if self.last_failure_ms > self.last_success_ms else "well"

    def to_json(self) -> dict[str, Any]:
        """As `subscription describe` and the HTTP API show it."""
        return {
            "state": self.state,
            "circuit": self.circuit,
            "window": self.window,
            "in_flight": self.under_way,
            "delivered": self.delivered_total,
            "failed": self.failed_total,
            "dropped": self.dropped_total,
            "last_success": _moment(self.last_success_ms),
            "last_failure": _moment(self.last_failure_ms),
            "last_failure_reason": self.last_failure or None,
            "stopped_because": self.stopped or None,
        }


class EndpointHealths:
    """By subscription. Empty, and nothing else, where nothing is pushed."""

    def __init__(self) -> None:
        self._by_name: dict[str, EndpointHealth] = {}

    def find(self, subscription: str) -> EndpointHealth | None:
        """None: this broker has pushed nothing for it."""
        return self._by_name.get(subscription)

    def describe(self, subscription: str) -> dict[str, Any] | None:
        health = self._by_name.get(subscription)
        return None if health is None else health.to_json()

    def of(self, subscription: str) -> EndpointHealth:
        return self._by_name.setdefault(subscription, EndpointHealth())

    def forget(self, subscription: str) -> None:
        self._by_name.pop(subscription, None)

    def samples(self) -> Iterator[Sample]:
        for name, health in list(self._by_name.items()):
            labels = (name,)
            yield DELIVERIES.name, (name, "delivered"), health.delivered_total
            yield DELIVERIES.name, (name, "failed"), health.failed_total
            yield DELIVERIES.name, (name, "dropped"), health.dropped_total
            yield UNDER_WAY.name, labels, health.under_way
            yield WINDOW.name, labels, health.window
            yield CIRCUIT.name, labels, _CIRCUITS[health.circuit]
            yield SECONDS.name, labels, health.durations.copy()


def _moment(milliseconds: int) -> str | None:
    if not milliseconds:
        return None
    moment = datetime.fromtimestamp(milliseconds / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
