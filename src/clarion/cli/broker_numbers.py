"""What only a broker knows of itself, from its metrics: clients, how long they wait, how long its disk takes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from clarion.cli.errors import CliError

Numbers = Mapping[str, float]  # series by name and labels, as the page writes them

_SECONDS_MAX: Final = 5.0
_SHARE: Final = 0.99
_PRODUCE: Final = 'clarion_request_duration_seconds_bucket{api="Produce",le="'
_FLUSH: Final = 'clarion_flush_duration_seconds_bucket{le="'


def read_numbers(address: str) -> Numbers:
    """Of `HOST:PORT`, where `serve --http` serves them."""
    from http.client import HTTPException
    from urllib.request import urlopen

    try:
        with urlopen(f"http://{address}/metrics", timeout=_SECONDS_MAX) as page:  # the scheme is ours
            return parse(page.read().decode())
    except (OSError, ValueError, HTTPException) as error:
        raise CliError(f"no metrics at {address} ({error}); is `clarion serve --http {address}` running?") from error


def parse(page: str) -> Numbers:
    lines = (line.rpartition(" ") for line in page.splitlines() if line and not line.startswith("#"))
    return {name: float(value) for name, _, value in lines if name}


def row(before: Numbers, after: Numbers) -> dict[str, Any]:
    """What went on between two looks. Pure."""
    return {
        "connections": int(after.get("clarion_connections", 0)),
        "produce_seconds_99": _bound(_PRODUCE, before, after),
        "flush_seconds_99": _bound(_FLUSH, before, after),
        "event_loop_lag_seconds": after.get("clarion_event_loop_lag_seconds"),
        "disk_free_bytes": after.get("clarion_disk_free_bytes"),
    }


def _bound(begin: str, before: Numbers, after: Numbers) -> float | None:
    """What nearly all stayed below; None if there was nothing, or somebody took longer than can be told."""
    found = {}
    for name, count in after.items():
        if name.startswith(begin) and (bound := re.fullmatch(r'([\d.]+|\+Inf)"}', name[len(begin) :])):
            found[float(bound[1])] = count - before.get(name, 0.0)
    total = found.get(float("inf"), 0.0)
    bounds = sorted(bound for bound, count in found.items() if count >= _SHARE * total > 0)
    return bounds[0] if bounds and bounds[0] != float("inf") else None
