"""`clarion cluster rebalance` and `drain`: a plan of moves that can be seen first, and the moves.

The plan is made here, from what the brokers say of themselves, by the rules that place new partitions
(`clarion.cluster.placement`); it moves no more than must move. The cluster performs it: new replicas are filled before
old ones go.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Final, NamedTuple, TypeVar

import typer

from clarion.cli.cluster import ClusterView, PartitionView, commands, look
from clarion.cli.errors import CliError
from clarion.cli.link import BootstrapOption, JsonOption, Link, admin_api, result_of
from clarion.cli.own_channel import with_channel
from clarion.cli.table import Column, show_notice, show_rows
from clarion.cli.units import plural
from clarion.model.names import EVENTS_TOPIC

Answer = TypeVar("Answer")

_AT_ONCE: Final = 500  # moves in one request
_LOOK_SECONDS: Final = 0.5
_DRAINED: Final = "clarion.drained"
_ANSWER_SECONDS_MAX: Final = 3.0  # of a broker that is well: milliseconds
_LEADERS_SECONDS_MAX: Final = 30.0  # a replica that was filled is in sync at once; one whose broker is away, never
_ELECT: Final = 43
_REASSIGN: Final = 45
_LIST_REASSIGNMENTS: Final = 46

DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Show what would move, and move nothing.")]
WaitOption = Annotated[bool, typer.Option("--wait/--no-wait", help="Return when everything has moved.")]


class Move(NamedTuple):
    topic: str
    partition: int
    before: tuple[int, ...]
    after: tuple[int, ...]

    @property
    def is_of_messages(self) -> bool:
        """Not only of leadership."""
        return set(self.before) != set(self.after)


class MovingPartition(NamedTuple):
    """A partition on its way."""

    topic: str
    partition: int
    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]

    def bytes_left(self, sizes: Mapping[int, Mapping[tuple[str, int], int]]) -> int:
        have = {one: sizes.get(one, {}).get((self.topic, self.partition), 0) for one in self.replicas}
        return sum(max(have.values(), default=0) - have[one] for one in self.adding)


@commands.command()
def rebalance(
    context: typer.Context,
    dry_run: DryRunOption = False,
    wait: WaitOption = True,
    bootstrap: BootstrapOption = None,
    as_json: JsonOption = False,
) -> None:
    """Spread replicas and leaders evenly over the brokers, moving no more than must move."""
    link = Link.of(context, bootstrap)
    view = _look_ahead(link)
    drained = _drained(link, view)
    open_to_all = [one["id"] for one in view.brokers if one["id"] not in drained]
    if not open_to_all:
        raise CliError("every broker is drained: `clarion cluster drain --undo BROKER` lets one hold replicas again")
    _carry_out(link, plan(view, open_to_all), dry_run=dry_run, wait=wait, as_json=as_json)


@commands.command()
def drain(
    context: typer.Context,
    broker: Annotated[int, typer.Argument(metavar="BROKER", help="The broker's id.")],
    undo: Annotated[bool, typer.Option("--undo", help="Let it hold and lead partitions again.")] = False,
    dry_run: DryRunOption = False,
    wait: WaitOption = True,
    bootstrap: BootstrapOption = None,
    as_json: JsonOption = False,
) -> None:
    """Move everything away from a broker, and keep new topics off it, so that it can be taken out of the cluster."""
    link = Link.of(context, bootstrap)
    view = _look_ahead(link)
    known = [one["id"] for one in view.brokers]
    if broker not in known:
        raise CliError(f"there is no broker {broker}; there are {_ids(known)}")
    if undo:
        _set_drained(link, broker, False)
        show_notice(f"broker {broker} may hold replicas again; `clarion cluster rebalance` moves some there")
        return
    drained = _drained(link, view)
    left = [one for one in known if one != broker and one not in drained]
    if not left:
        raise CliError("there is no other broker to take over")
    moves = [one for one in plan(view, left) if broker in one.before]
    # The events are in the store too: for them fewer replicas will do.
    short = next((one for one in moves if len(one.after) < len(one.before) and one.topic != EVENTS_TOPIC), None)
    if short is not None:
        raise CliError(
            f"{short.topic}-{short.partition} has {plural(len(short.before), 'replica')}, and without broker {broker} "
            f"there are {plural(len(left), 'broker')}: add one first (to stop a broker for a while needs no draining)"
        )
    if not dry_run:
        _set_drained(link, broker, True)  # first: what is made from here on goes elsewhere
    _carry_out(link, moves, dry_run=dry_run, wait=wait, as_json=as_json)


def _drained(link: Link, view: ClusterView) -> set[int]:
    """Brokers that shall hold nothing."""
    answers = _settings_of_brokers(link, view)
    told = {number: result_of(one, link, f"asking broker {number}") for number, one in answers.items()}
    return {number for number, settings in told.items() if _is_drained(settings)}


def drained_or_unknown(link: Link, view: ClusterView) -> dict[int, bool | None]:
    """By broker; None of one that does not answer at once, as it is with one that is frozen."""
    from confluent_kafka import KafkaException

    told: dict[int, bool | None] = {}
    for number, answer in _settings_of_brokers(link, view, request_timeout=_ANSWER_SECONDS_MAX).items():
        try:
            told[number] = _is_drained(answer.result())
        except KafkaException:
            told[number] = None
    return told


def _settings_of_brokers(link: Link, view: ClusterView, **how: float) -> dict[int, Any]:
    kind, admin = admin_api().ConfigResource.Type.BROKER, link.admin()
    asked = {one["id"]: admin_api().ConfigResource(kind, str(one["id"])) for one in view.brokers}
    return {number: admin.describe_configs([one], **how)[one] for number, one in asked.items()}  # each is asked itself


def _is_drained(settings: Mapping[str, Any]) -> bool:
    return _DRAINED in settings and settings[_DRAINED].value == "true"


def _set_drained(link: Link, broker: int, is_drained: bool) -> None:
    does = admin_api().AlterConfigOpType.SET if is_drained else admin_api().AlterConfigOpType.DELETE
    entry = admin_api().ConfigEntry(_DRAINED, "true" if is_drained else None, incremental_operation=does)
    kind = admin_api().ConfigResource.Type.BROKER
    resource = admin_api().ConfigResource(kind, str(broker), incremental_configs=[entry])
    answers = link.admin().incremental_alter_configs([resource])
    result_of(answers[resource], link, f"broker {broker}")


def _look_ahead(link: Link) -> ClusterView:
    """As it will be: a partition that is being moved has its old replicas as well until it is done."""
    view = look(link)
    return without_leaving(view, with_channel(link, _moving))


def without_leaving(view: ClusterView, moving: Sequence[MovingPartition]) -> ClusterView:
    leaving = {(one.topic, one.partition): one.removing for one in moving}

    def staying(one: PartitionView) -> list[int]:
        return [replica for replica in one.replicas if replica not in leaving.get((one.topic, one.partition), ())]

    return replace(view, partitions=[replace(one, replicas=staying(one)) for one in view.partitions])


def plan(view: ClusterView, brokers: Sequence[int]) -> list[Move]:
    """What has to move so that all is on these brokers, evenly."""
    from clarion.cluster.placement import spread

    racks = {one["id"]: one["rack"] for one in view.brokers if one["id"] in brokers}
    wanted = spread([tuple(one.replicas) for one in view.partitions], racks)
    moves = [
        Move(one.topic, one.partition, tuple(one.replicas), after)
        for one, after in zip(view.partitions, wanted, strict=True)
    ]
    return [move for move in moves if move.before != move.after]


def _carry_out(link: Link, moves: list[Move], *, dry_run: bool, wait: bool, as_json: bool) -> None:
    rows = [{**move._asdict(), "messages": move.is_of_messages} for move in moves]
    columns = [
        Column("topic", "TOPIC", style="cyan"),
        Column("partition", "PARTITION", right=True),
        Column("before", "REPLICAS", _ids),
        Column("after", "BECOME", _ids),
        Column("messages", "MOVES", lambda one: "messages" if one else "its leader"),
    ]
    show_rows(rows, columns, as_json=as_json, none="nothing has to move")
    if dry_run or not moves:
        return
    with_channel(link, lambda channel: _reassign(channel, moves))
    if wait:
        _wait(link, len(moves))
        _wait_for_leaders(link, moves)


async def _reassign(channel: Any, moves: list[Move]) -> None:
    from clarion.wire.messages.replicas import (
        AlterPartitionReassignmentsRequest,
        ReassignablePartition,
        ReassignableTopic,
    )

    for at in range(0, len(moves), _AT_ONCE):
        by_topic: dict[str, list[ReassignablePartition]] = {}
        for move in moves[at : at + _AT_ONCE]:
            by_topic.setdefault(move.topic, []).append(
                ReassignablePartition(partition_index=move.partition, replicas=move.after)
            )
        topics = tuple(ReassignableTopic(name=name, partitions=tuple(some)) for name, some in by_topic.items())
        answer = await channel.ask(_REASSIGN, AlterPartitionReassignmentsRequest(topics=topics))
        for topic in answer.responses:
            for one in topic.partitions:
                if one.error_code:
                    raise CliError(f"{topic.name}-{one.partition_index} cannot move: {one.error_message}")


async def _moving(channel: Any) -> list[MovingPartition]:
    from clarion.wire.messages.replicas import ListPartitionReassignmentsRequest

    answer = await channel.ask(_LIST_REASSIGNMENTS, ListPartitionReassignmentsRequest())
    return [
        MovingPartition(
            topic.name,
            one.partition_index,
            tuple(one.replicas),
            tuple(one.adding_replicas),
            tuple(one.removing_replicas),
        )
        for topic in answer.topics
        for one in topic.partitions
    ]


def _wait(link: Link, count: int) -> None:
    """Until all have moved; in a terminal a bar shows the bytes that are there already."""
    moving = with_channel(link, _moving)
    total = _bytes_left(link, moving)
    told, done = -1, 0
    with _bar(total) if total and sys.stderr.isatty() else nullcontext(lambda _: None) as advance:
        while moving:
            if len(moving) != told and not (total and sys.stderr.isatty()):
                show_notice(f"{plural(len(moving), 'partition')} of {count} on the way")
                told = len(moving)
            time.sleep(_LOOK_SECONDS)
            moving = with_channel(link, _moving)
            there = total - _bytes_left(link, moving)
            advance(max(there - done, 0))
            done = max(there, done)


def _wait_for_leaders(link: Link, moves: Sequence[Move]) -> None:
    """The first of its replicas leads a partition by itself only after a while, or never: it is asked to now."""
    wanted = {(move.topic, move.partition): move.after[0] for move in moves}
    deadline = time.monotonic() + _LEADERS_SECONDS_MAX
    while others := [one for one in look(link).partitions if _leads_instead(one, wanted)]:
        if time.monotonic() > deadline:
            show_notice(f"{plural(len(others), 'partition')} led by others still: their first replicas are not in sync")
            return
        with_channel(link, partial(_elect, others))
        time.sleep(_LOOK_SECONDS)
    show_notice(f"{plural(len(moves), 'partition')} moved")


def _leads_instead(partition: PartitionView, wanted: Mapping[tuple[str, int], int]) -> bool:
    return partition.leader != wanted.get((partition.topic, partition.partition), partition.leader)


async def _elect(partitions: Sequence[PartitionView], channel: Any) -> None:
    """Errors of single partitions are no matter: whoever asks looks again."""
    from clarion.wire.messages.replicas import ElectionTopic, ElectLeadersRequest

    by_topic: dict[str, list[int]] = {}
    for one in partitions:
        by_topic.setdefault(one.topic, []).append(one.partition)
    topics = tuple(ElectionTopic(topic=name, partitions=tuple(some)) for name, some in by_topic.items())
    await channel.ask(_ELECT, ElectLeadersRequest(topic_partitions=topics))


def _bar(total: int) -> Any:
    from clarion.cli.progress import byte_bar

    return byte_bar("moving", total)


def _bytes_left(link: Link, moving: Sequence[MovingPartition]) -> int:
    """What the new replicas lack of the largest one; 0 where nobody tells."""
    from clarion.cli.log_dirs import disk_sizes

    sizes = (disk_sizes(link.admin(), link) if moving else None) or {}
    return sum(one.bytes_left(sizes) for one in moving)


def _ids(ids: Sequence[int]) -> str:
    return ", ".join(map(str, ids))
