"""What is counted of the HTTP API, and under which names the metrics page tells it.

The API counts here whether it is loaded or not: the page need not know who serves it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from clarion.broker.metrics_page import Metric, Sample
from clarion.model.histogram import Histogram

HTTP_REQUESTS: Final = Metric(
    "clarion_http_requests_total", "counter", "Requests of the HTTP API, by route and status.", ("route", "status")
)
HTTP_SECONDS: Final = Metric(
    "clarion_http_request_duration_seconds",
    "histogram",
    "From a request of the HTTP API to the end of its answer, by route; with the time for which it was told to wait.",
    ("route",),
)
HTTP_CONNECTIONS: Final = Metric("clarion_http_connections", "gauge", "Open connections of the HTTP API.")
HTTP_LOOP_SECONDS: Final = Metric(
    "clarion_http_event_loop_seconds_total", "counter", "Time that the event loop has spent on the HTTP API."
)
HTTP_REFUSED: Final = Metric(
    "clarion_http_refused_total",
    "counter",
    "Requests of the HTTP API answered 429 or 503 because it had its share of the event loop, or no room.",
)
OF_HTTP: Final = (HTTP_REQUESTS, HTTP_SECONDS, HTTP_CONNECTIONS, HTTP_LOOP_SECONDS, HTTP_REFUSED)

_ROUTES_MAX: Final = 1_000  # there are some fifty: nothing that a client sends makes one


class HttpNumbers:
    def __init__(self) -> None:
        self.requests: dict[tuple[str, int], int] = {}
        self.durations: dict[str, Histogram] = {}
        self.connections = 0
        self.loop_seconds = 0.0
        self.refused_total = 0

    def note(self, route: str, status: int, seconds: float) -> None:
        key = (route, status)
        self.requests[key] = self.requests.get(key, 0) + 1
        histogram = self.durations.get(route)
        if histogram is None:
            assert len(self.durations) < _ROUTES_MAX
            histogram = self.durations[route] = Histogram()
        histogram.note(seconds)

    def samples(self) -> Iterator[Sample]:
        for (route, status), count in list(self.requests.items()):
            yield HTTP_REQUESTS.name, (route, str(status)), count
        for route, histogram in list(self.durations.items()):
            yield HTTP_SECONDS.name, (route,), histogram.copy()
        yield HTTP_CONNECTIONS.name, (), self.connections
        yield HTTP_LOOP_SECONDS.name, (), self.loop_seconds
        yield HTTP_REFUSED.name, (), self.refused_total
