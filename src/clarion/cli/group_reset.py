"""Where a group is to go on reading: which partitions `group reset` moves, and to which offset each."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clarion.cli.errors import CliError, UsageError
from clarion.cli.known_topics import describe_topic
from clarion.cli.link import Link
from clarion.cli.offsets import Place, all_partitions, end_offsets, offsets_at, start_offsets
from clarion.cli.units import parse_duration_ms, parse_time_ms

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient


@dataclass(frozen=True, slots=True)
class Goal:
    """Exactly one of these is given."""

    earliest: bool = False
    latest: bool = False
    offset: int | None = None
    time_ms: int | None = None
    shift: int | None = None


def goal_of(
    to_earliest: bool,
    to_latest: bool,
    to_offset: int | None,
    to_time: str | None,
    by_duration: str | None,
    shift: int | None,
) -> Goal:
    given = [to_earliest, to_latest, to_offset is not None, to_time is not None, by_duration is not None]
    if sum([*given, shift is not None]) != 1:
        raise UsageError(
            "say where to: exactly one of --to-earliest, --to-latest, --to-offset, --to-time, --by-duration, --shift"
        )
    if to_offset is not None and to_offset < 0:
        raise UsageError(f"--to-offset {to_offset}: an offset is at least 0")
    now_ms = time.time_ns() // 1_000_000
    moment = parse_time_ms(to_time, now_ms) if to_time is not None else None
    if by_duration is not None:
        moment = now_ms - parse_duration_ms(by_duration.removeprefix("-"))
    return Goal(to_earliest, to_latest, to_offset, moment, shift)


def chosen_places(
    admin: AdminClient, link: Link, group: str, topics: Sequence[str] | None, committed: Mapping[Place, int]
) -> list[Place]:
    """The partitions named by `TOPIC` or `TOPIC:0,2`, or all that the group has committed."""
    if not topics:
        if not committed:
            raise CliError(f"{group} has committed nothing yet: say which topic, with --topic TOPIC")
        return sorted(committed)
    return sorted({place for each in topics for place in _named_places(admin, link, each)})


def target_offsets(
    admin: AdminClient, link: Link, places: list[Place], committed: Mapping[Place, int], goal: Goal
) -> dict[Place, int]:
    """Where each partition goes; never before its first message nor behind its end."""
    if goal.time_ms is not None:
        return offsets_at(admin, link, places, goal.time_ms)
    starts, ends = start_offsets(admin, link, places), end_offsets(admin, link, places)
    return {place: _target(goal, starts[place], ends[place], committed.get(place)) for place in places}


def _target(goal: Goal, start: int, end: int, committed: int | None) -> int:
    if goal.earliest:
        return start
    if goal.latest:
        return end
    wanted = goal.offset if goal.offset is not None else (start if committed is None else committed) + (goal.shift or 0)
    return min(max(wanted, start), end)


def _named_places(admin: AdminClient, link: Link, text: str) -> list[Place]:
    name, colon, numbers = text.partition(":")
    found = describe_topic(admin, link, name)
    name, places = found.name, all_partitions(found)
    if not colon:
        return places
    wanted = [(name, _number(each, text)) for each in numbers.split(",")]
    for place in wanted:
        if place not in places:
            raise CliError(f"{name} has no partition {place[1]}: it has 0 to {len(places) - 1}")
    return wanted


def _number(text: str, whole: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise UsageError(f"--topic {whole}: write TOPIC or TOPIC:0,1,2")
    return int(text)
