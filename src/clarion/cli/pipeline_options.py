"""What the words of `clarion pipeline run` mean to the connector and to Spark. Pure functions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from clarion.cli.errors import CliError, UsageError
from clarion.cli.link import Link
from clarion.cli.listeners import parse_address
from clarion.cli.units import parse_time_ms

if TYPE_CHECKING:
    from clarion.pipeline.ready.registry import Option, Ready

_HELP = {"--help", "-h"}


def asks_for_help(words: Sequence[str]) -> bool:
    return not _HELP.isdisjoint(words)


def ready_help(ready: Ready) -> str:
    """What `clarion pipeline run archive --help` says."""
    rows = [(_written(each), _explained(each)) for each in ready.options]
    width = max(len(left) for left, _ in rows)
    required = " ".join(_written(each) for each in ready.options if each.is_required)
    return "\n".join(
        [
            f"Usage: clarion pipeline run {ready.name} {required} [OPTIONS]",
            "",
            ready.help,
            "",
            *(f"  {left:<{width}}  {right}" for left, right in rows),
            "",
            "and the options of every run (`clarion pipeline run --help`).",
        ]
    )


def _written(option: Option) -> str:
    return f"--[no-]{option.name}" if option.is_switch else f"--{option.name} {option.name.upper()}"


def _explained(option: Option) -> str:
    note = "required" if option.is_required else f"default: {option.default}" if option.default else ""
    return f"{option.help} ({note})" if note else option.help


def edges(
    start: str | None, end: str | None, now_ms: int, *, is_batch: bool
) -> tuple[dict[str, str] | None, dict[str, str]]:
    """`--from` and `--to` as the connector's options; what a batch cannot have is refused before Spark is started."""
    starting = None if start is None else position(start, "starting", now_ms)
    ending = {} if end is None else position(end, "ending", now_ms)
    if is_batch:
        _check_batch((starting or {}).get("startingOffsets", "earliest"), ending.get("endingOffsets", "latest"))
    return starting, ending


def _check_batch(starting: str, ending: str) -> None:
    from clarion.pipeline.source.bounds import check_batch, named_or_offsets

    try:
        check_batch(named_or_offsets(starting), named_or_offsets(ending))
    except ValueError as error:
        raise UsageError(f"--from {starting} --to {ending}: {error}") from error


def position(text: str, edge: str, now_ms: int) -> dict[str, str]:
    """`earliest`, `latest`, a time or offsets → the connector's option for that edge (`starting` or `ending`)."""
    option = "--from" if edge == "starting" else "--to"
    if text == "earliest" and edge == "ending":
        raise UsageError("--to earliest: a batch that ends at the beginning has no rows")
    if text in ("earliest", "latest"):
        return {f"{edge}Offsets": text}
    if text.startswith("{"):
        return {f"{edge}Offsets": _offsets(text, option)}
    strategy = {"startingOffsetsByTimestampStrategy": "latest"} if edge == "starting" else {}
    try:
        return {f"{edge}Timestamp": str(parse_time_ms(text, now_ms)), **strategy}
    except UsageError as error:
        raise UsageError(f"{option}: {error} (or {'earliest, ' if edge == 'starting' else ''}latest)") from error


def spark_settings(conf: Sequence[str] | None) -> dict[str, str]:
    pairs = [each.partition("=") for each in conf or ()]
    for name, equals, _ in pairs:
        if not name or not equals:
            raise UsageError(f"--conf {name}: write NAME=VALUE")
    return {name: value for name, _, value in pairs}


def metrics_address(text: str | None) -> tuple[str, int] | None:
    if text is None:
        return None
    try:
        host, port = parse_address(text, "--metrics")
    except CliError as error:
        raise UsageError(str(error)) from error
    return host, port


def connector_options(link: Link) -> dict[str, str]:
    """`-X ssl.ca.location=…` is the connector's `kafka.ssl.ca.location`."""
    return {f"kafka.{name}": value for name, value in link.settings.items()}


def _offsets(text: str, option: str) -> str:
    try:
        document = json.loads(text)
    except ValueError as error:
        raise UsageError(f"{option} {text}: not JSON: {error}") from error
    if not isinstance(document, dict) or not all(isinstance(each, dict) for each in document.values()):
        raise UsageError(f'{option} {text}: write {{"topic": {{"0": 123}}}}, each partition with its offset')
    from clarion.pipeline.source.bounds import named_or_offsets

    try:
        named_or_offsets(text)
    except ValueError as error:
        raise UsageError(f"{option} {text}: {error}") from error
    return json.dumps(document)
