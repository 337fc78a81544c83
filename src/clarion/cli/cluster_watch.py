"""`clarion cluster status --watch`: brokers, partitions in trouble, and what was decided, again and again.

It fits into 80 columns, and into as many lines as the terminal has: first what is wrong, the latest decisions last.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Final

from clarion.cli.cluster import ClusterView, Filled, PartitionView, filled_shares, look, missing_text, sentences
from clarion.cli.cluster_events import EventReader, time_text
from clarion.cli.errors import CliError
from clarion.cli.interrupt import terminate_interrupts
from clarion.cli.link import Link
from clarion.cli.table import clean

if TYPE_CHECKING:
    from clarion.cluster.events import ClusterEvent

_WIDTH_MIN: Final = 60
_EVENTS_KEPT: Final = 50  # more than any screen has lines for
Look = tuple[ClusterView, "list[ClusterEvent]", Filled]


def watch(link: Link, pause_seconds: float, count: int | None) -> None:
    with terminate_interrupts():
        try:
            _show(_screens(link, pause_seconds, count))
        except KeyboardInterrupt:
            return  # how one ends it


def screen(view: ClusterView, events: Sequence[ClusterEvent], filled: Filled, width: int, height: int) -> list[str]:
    """Lines of at most that width, and no more of them than fit. Pure."""
    width = max(width, _WIDTH_MIN)
    told = [line for sentence in sentences(view) for line in wrap(clean(sentence), width, subsequent_indent="  ")]
    head = [*told, "", *_brokers(view, width)]
    trouble = [_partition_line(one, filled, width) for one in sorted(view.under_replicated, key=_worst_first)]
    room = max(height - len(head) - 2, 6)
    for_events = min(len(events), max(room - len(trouble) - 2, room // 3))
    for_trouble = room - for_events - 2
    lines = head
    if trouble:
        lines += ["", _cut("PARTITION".ljust(32) + "LEADER".rjust(8) + "  REPLICAS".ljust(14) + "  MISSING", width)]
        lines += trouble[:for_trouble]
        if len(trouble) > for_trouble:
            lines[-1] = f"… and {len(trouble) - for_trouble + 1} more"
    if events:
        lines += ["", *(_event_line(one, width) for one in list(events)[-for_events:])]
    return [_cut(clean(line), width) for line in lines]


def _brokers(view: ClusterView, width: int) -> list[str]:
    leads = Counter(one.leader for one in view.partitions)
    holds = Counter(replica for one in view.partitions for replica in one.replicas)
    lacks = Counter(replica for one in view.partitions for replica in one.missing)
    known = {one["id"]: one for one in view.brokers}
    lines = [_broker_line(width, "BROKER", "ADDRESS", "RACK", "LEADS", "REPLICAS", "MISSING")]
    for number in sorted({*known, *holds}):
        one: Mapping[str, Any] = known.get(number, {"address": "away", "rack": None})
        name = f"{number} *" if number == view.controller else str(number)
        cells = (str(one["address"]), one["rack"] or "-", leads[number], holds[number], lacks[number])
        lines.append(_broker_line(width, name, *map(str, cells)))
    return [*lines, "* decides for all"] if view.controller is not None else lines


def _broker_line(width: int, broker: str, address: str, rack: str, *numbers: str) -> str:
    right = "".join(number.rjust(10) for number in numbers)
    room = width - len(right) - 8 - 10
    return broker.ljust(8) + _cut(address, room - 1).ljust(room) + _cut(rack, 9).ljust(10) + right


def _partition_line(one: PartitionView, filled: Filled, width: int) -> str:
    name = _cut(f"{one.topic}-{one.partition}", 31).ljust(32)
    leader = ("nobody" if one.leader is None else str(one.leader)).rjust(8)
    replicas = "  " + ", ".join(map(str, one.replicas)).ljust(12)
    return _cut(f"{name}{leader}{replicas}  {missing_text(one, filled)}", width)


def _worst_first(one: PartitionView) -> tuple[bool, int, str, int]:
    return one.leader is not None, len(one.in_sync), one.topic, one.partition


def _event_line(one: ClusterEvent, width: int) -> str:
    return _cut(f"{time_text(one.at_ms)[11:19]}  {one.sentence}", width)


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def _screens(link: Link, pause_seconds: float, count: int | None) -> Iterator[Look]:
    reader, kept = _reader(link), deque[Any](maxlen=_EVENTS_KEPT)
    if reader is not None:
        kept.extend(reader.until_end())
    number = 0
    try:
        while True:
            view = look(link)
            yield view, list(kept), filled_shares(link, view)
            number += 1
            if number == count:
                return
            if reader is None:
                time.sleep(pause_seconds)
            else:
                deadline = time.monotonic() + pause_seconds
                while (left := deadline - time.monotonic()) > 0:
                    kept.extend(reader.poll(left))
    finally:
        if reader is not None:
            reader.close()


def _reader(link: Link) -> EventReader | None:
    """None where no events are kept in a topic."""
    try:
        return EventReader(link, _EVENTS_KEPT)
    except CliError:
        return None


def _show(screens: Iterator[Look]) -> None:
    if not sys.stdout.isatty():
        for view, events, filled in screens:
            print("\n".join([*screen(view, events, filled, 80, 1_000), ""]), flush=True)
        return
    from rich.live import Live
    from rich.text import Text

    with Live(Text("looking …"), screen=True, auto_refresh=False) as live:
        for view, events, filled in screens:
            size = shutil.get_terminal_size()
            lines = screen(view, events, filled, size.columns, size.lines)
            live.update(Text("\n".join(lines)), refresh=True)
