"""`clarion top`: what goes on at a broker, again and again: topics with their rates, groups with their lag.

A client's view, so it works with any Kafka; what only a broker knows (connections, flushes) comes from its metrics.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer

from clarion.cli import broker_numbers
from clarion.cli.broker_numbers import Numbers
from clarion.cli.errors import CliError, UsageError
from clarion.cli.group import group_rows
from clarion.cli.http_link import http_addresses
from clarion.cli.interrupt import terminate_interrupts
from clarion.cli.known_topics import all_topics
from clarion.cli.link import BootstrapOption, Link
from clarion.cli.log_dirs import disk_sizes
from clarion.cli.offsets import end_offsets
from clarion.cli.table import clean, json_text
from clarion.cli.units import bytes_text, count_text, parse_duration_ms, plural

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

_WIDTH_MIN: Final = 60
_GROUPS_MAX: Final = 100  # each is asked for by itself: more would take longer than the interval
_INTERVAL_MS_MIN: Final = 100


class TopicSample(NamedTuple):
    partitions: int
    end: int  # of all partitions together
    size_bytes: int | None


class GroupSample(NamedTuple):
    state: str
    members: int
    lag: int


@dataclass(frozen=True, slots=True)
class Sample:
    """What was there at a moment (of the monotonic clock)."""

    at: float
    topics: Mapping[str, TopicSample]
    groups: Mapping[str, GroupSample]
    numbers: Numbers | None = None  # of the broker itself


def add_to(app: typer.Typer) -> None:
    app.command()(top)


def top(
    context: typer.Context,
    interval: Annotated[str, typer.Option(metavar="2s", help="How often to look.")] = "2s",
    count: Annotated[int | None, typer.Option("--count", "-n", metavar="N", help="End after N looks.")] = None,
    internal: Annotated[bool, typer.Option("--internal", help="Show internal topics too.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per look.")] = False,
    metrics: Annotated[
        str | None,
        typer.Option(
            "--metrics", metavar="HOST:PORT", help="Where clients and latency are told; by default the broker says it."
        ),
    ] = None,
    bootstrap: BootstrapOption = None,
) -> None:
    """Watch topics and groups: messages and bytes a second, sizes, lag. Ctrl-C ends.

    Example:

        clarion top --count 2 --interval 500ms
    """
    pause_ms = parse_duration_ms(interval)
    if pause_ms < _INTERVAL_MS_MIN:
        raise UsageError(f"--interval {interval}: at least {_INTERVAL_MS_MIN}ms")
    if count is not None and count < 1:
        raise UsageError(f"--count {count}: at least 1")
    link = Link.of(context, bootstrap)
    metrics = metrics or _metrics_of(link)
    samples = _samples(link.admin(), link, partial(_look, internal, metrics), pause_ms / 1000, count)
    with terminate_interrupts():
        try:
            _show(samples, link.bootstrap, as_json)
        except KeyboardInterrupt:
            return  # how one ends it


def rates(before: Sample, after: Sample) -> dict[str, Any]:
    """Rows of topics, the busiest first, and of groups, the furthest behind first; one of the broker. Pure."""
    seconds = max(after.at - before.at, 1e-9)
    topics = [_topic_row(name, before.topics.get(name), now, seconds) for name, now in after.topics.items()]
    groups = [_group_row(name, before.groups.get(name), now, seconds) for name, now in after.groups.items()]
    rows = {
        "topics": sorted(topics, key=lambda row: (-row["messages_per_second"], row["topic"])),
        "groups": sorted(groups, key=lambda row: (-row["lag"], row["group"])),
    }
    if after.numbers is None:
        return rows
    return {"broker": broker_numbers.row(before.numbers or {}, after.numbers), **rows}


def screen(where: str, rows: Mapping[str, Any], width: int, height: int) -> list[str]:
    """Lines of at most that width, and no more of them than fit. Pure."""
    width = max(width, _WIDTH_MIN)
    topics, groups = rows["topics"], rows["groups"]
    total = sum(row["messages_per_second"] for row in topics)
    head = f"{where}: {plural(len(topics), 'topic')}, {plural(len(groups), 'group')}, {count_text(total)} messages/s in"
    heads = [head, _broker_line(rows["broker"])] if "broker" in rows else [head]
    height -= len(heads) - 1
    group_lines = min(len(groups), max((height - 5) // 3, 3)) if groups else 0
    topic_lines = max(height - 4 - (group_lines + 2 if groups else 0), 3)
    lines = [*heads, "", _line(width, "TOPIC", "PARTITIONS", "MESSAGES/S", "BYTES/S", "SIZE")]
    lines += [_line(width, row["topic"], *_topic_cells(row)) for row in topics[:topic_lines]]
    if groups:
        lines += ["", _line(width, "GROUP", "STATE", "MEMBERS", "LAG", "LAG/S")]
        lines += [_line(width, row["group"], *_group_cells(row)) for row in groups[:group_lines]]
    return [line[:width] for line in lines]


def _broker_line(row: Mapping[str, Any]) -> str:
    """Bounds of the histograms, so "within"."""
    within = {name: row[f"{name}_seconds_99"] for name in ("produce", "flush")}
    told = [f"{name} within {seconds * 1000:g} ms" for name, seconds in within.items() if seconds is not None]
    free = row["disk_free_bytes"]
    return ", ".join(
        [
            plural(row["connections"], "connection"),
            *([f"99 % of {' and '.join(told)}"] if told else []),
            *([] if free is None else [f"{bytes_text(free)} free"]),
        ]
    )


def _topic_row(name: str, before: TopicSample | None, now: TopicSample, seconds: float) -> dict[str, Any]:
    grown = None
    if before is not None and before.size_bytes is not None and now.size_bytes is not None:
        grown = round((now.size_bytes - before.size_bytes) / seconds)
    came = now.end - before.end if before is not None else 0
    return {
        "topic": name,
        "partitions": now.partitions,
        "messages_per_second": round(max(came, 0) / seconds, 1),
        "bytes_per_second": grown,
        "size_bytes": now.size_bytes,
    }


def _group_row(name: str, before: GroupSample | None, now: GroupSample, seconds: float) -> dict[str, Any]:
    change = 0.0 if before is None else round((now.lag - before.lag) / seconds, 1)
    return {"group": name, **now._asdict(), "lag_per_second": change}


def _topic_cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    grown, size = row["bytes_per_second"], row["size_bytes"]
    return (
        count_text(row["partitions"]),
        count_text(row["messages_per_second"]),
        "-" if grown is None else f"{bytes_text(grown)}/s",
        "-" if size is None else bytes_text(size),
    )


def _group_cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    return row["state"], count_text(row["members"]), count_text(row["lag"]), f"{row['lag_per_second']:+,.0f}"


def _line(width: int, name: str, *cells: str) -> str:
    """A name, cut where it is too long, and columns to its right."""
    right = "".join(f"{cell[:11]:>12}" for cell in cells)
    room = width - len(right)
    name = clean(name)
    return (name if len(name) <= room else name[: room - 1] + "…").ljust(room) + right


def _samples(
    admin: AdminClient, link: Link, look: Callable[[AdminClient, Link], Sample], seconds: float, count: int | None
) -> Iterator[tuple[Sample, Sample]]:
    before = look(admin, link)
    number = 0
    while number != count:
        time.sleep(max(before.at + seconds - time.monotonic(), 0.0))
        after = look(admin, link)
        yield before, after
        before, number = after, number + 1


def _metrics_of(link: Link) -> str | None:
    """Of a single broker, if it can be reached from here: among several, no one's figures stand for all."""
    try:
        addresses = list(http_addresses(link))
        if len(addresses) != 1:
            return None
        broker_numbers.read_numbers(addresses[0])
    except CliError:
        return None
    return addresses[0]


def _look(internal: bool, metrics: str | None, admin: AdminClient, link: Link) -> Sample:
    found = {name: [*topic.partitions] for name, topic in all_topics(admin, link).items()}
    shown = {name: found[name] for name in found if internal or not name.startswith("__")}
    ends = end_offsets(admin, link, [(name, each) for name in shown for each in shown[name]])
    at, sizes = time.monotonic(), disk_sizes(admin, link)
    topics = {
        name: TopicSample(len(parts), sum(ends[name, p] for p in parts), _size(name, sizes))
        for name, parts in shown.items()
    }
    rows = group_rows(admin, link, _GROUPS_MAX)
    groups = {row["group"]: GroupSample(row["state"], row["members"], row["lag"]) for row in rows}
    return Sample(at, topics, groups, None if metrics is None else broker_numbers.read_numbers(metrics))


def _size(topic: str, sizes: Mapping[int, Mapping[tuple[str, int], int]] | None) -> int | None:
    if sizes is None:
        return None
    return sum(size for of_broker in sizes.values() for (name, _), size in of_broker.items() if name == topic)


def _show(samples: Iterator[tuple[Sample, Sample]], where: str, as_json: bool) -> None:
    if as_json or not sys.stdout.isatty():
        for before, after in samples:
            rows = rates(before, after)
            print(json_text(rows) if as_json else "\n".join([*screen(where, rows, 80, 1_000), ""]), flush=True)
        return
    from rich.live import Live
    from rich.text import Text

    with Live(Text(f"{where}: looking …"), screen=True, auto_refresh=False) as live:
        for before, after in samples:
            size = shutil.get_terminal_size()
            live.update(Text("\n".join(screen(where, rates(before, after), size.columns, size.lines))), refresh=True)
