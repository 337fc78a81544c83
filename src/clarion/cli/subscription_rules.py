"""A subscription's rules as people read them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from clarion.cli.units import count_text, plural


def rule_rows(rules: Mapping[str, Any]) -> list[dict[str, str]]:
    """One row for each; those of the endpoint by themselves, as `push.url`."""
    return [{"rule": name, "value": value} for name, value in _flat(rules, "")]


def _flat(rules: Mapping[str, Any], before: str) -> Iterator[tuple[str, str]]:
    for name, value in rules.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{before}{name}.")
        else:
            yield before + name, _text(value)


def _text(value: object) -> str:
    if value is None or value in ([], {}):
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def endpoint_line(endpoint: dict[str, Any]) -> str:
    """How the endpoint of a push subscription is, as the broker that was asked sees it."""
    if endpoint["state"] == "stopped":
        return f"nothing is pushed any longer: {endpoint['stopped_because']}; `clarion subscription resume` tries again"
    sent = f"{plural(endpoint['delivered'], 'message')} delivered, {count_text(endpoint['failed'])} failed"
    last = endpoint["last_failure_reason"]
    if endpoint["state"] == "resting":
        return f"its endpoint fails, and is left alone for a while ({sent}): {last}"
    if endpoint["state"] == "failing":
        return f"its endpoint failed the last time ({sent}): {last}"
    return f"its endpoint is well ({sent})"
