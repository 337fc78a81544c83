"""`clarion group`: which groups there are, how far behind they are, and moving them to another place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clarion.cli import completion
from clarion.cli.errors import CliError
from clarion.cli.group_reset import Goal, chosen_places, goal_of, target_offsets
from clarion.cli.link import BootstrapOption, JsonOption, Link, result_of
from clarion.cli.offsets import Place, end_offsets
from clarion.cli.share_groups import TYPE as SHARE_TYPE
from clarion.cli.share_groups import (
    ShareGroupView,
    move_share_group,
    share_group_view,
    share_group_views,
    share_groups,
)
from clarion.cli.table import Column, clean, show_json, show_rows
from clarion.cli.topic import confirm
from clarion.cli.units import count_text, plural

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

commands = typer.Typer(help="List, describe, reset and delete groups.")

GroupArgument = Annotated[
    str, typer.Argument(metavar="GROUP", help="The group's id.", autocompletion=completion.groups)
]
_NOT_THERE = "DEAD"  # the state brokers report for a group that does not exist


def add_to(app: typer.Typer) -> None:
    app.add_typer(commands, name="group")


@commands.command("list")
def list_(context: typer.Context, bootstrap: BootstrapOption = None, as_json: JsonOption = False) -> None:
    """List groups with their state, members and total lag.

    Example:

        clarion group list --json
    """
    link = Link.of(context, bootstrap)
    admin = link.admin()
    rows = group_rows(admin, link)
    columns = [
        Column("group", "GROUP", style="cyan"),
        Column("state", "STATE"),
        Column("type", "TYPE"),
        Column("members", "MEMBERS", count_text, right=True),
        Column("lag", "LAG", count_text, right=True),
    ]
    show_rows(rows, columns, as_json=as_json, none="no groups yet")


@commands.command()
def describe(
    context: typer.Context, group: GroupArgument, bootstrap: BootstrapOption = None, as_json: JsonOption = False
) -> None:
    """Show a group's members, and for every partition how far it has read and what is left.

    Of a share group: from which message on not everything is done, and how many are not.

    Example:

        clarion group describe billing
    """
    link = Link.of(context, bootstrap)
    admin = link.admin()
    found = _describe(admin, link, group)
    if isinstance(found, ShareGroupView):
        _show_share_group(admin, link, found, as_json=as_json)
        return
    members = [_member_row(each) for each in found.members]
    owners = {place: row["member"] for row in members for place in row["places"]}
    partitions = _lag_rows(admin, link, group, owners)
    shown = [{**row, "places": [f"{topic}-{partition}" for topic, partition in row["places"]]} for row in members]
    state, assignor = found.state.name.lower(), found.partition_assignor
    if as_json:
        show_json({"group": group, "state": state, "assignor": assignor, "members": shown, "partitions": partitions})
        return
    lag = sum(row["lag"] or 0 for row in partitions)
    print(f"{clean(group)}: {state}, {plural(len(members), 'member')}, {plural(lag, 'message')} behind")
    if members:
        show_rows(shown, _MEMBER_COLUMNS, as_json=False)
    show_rows(partitions, _LAG_COLUMNS, as_json=False, none="it has committed nothing and owns no partition")


@commands.command()
def reset(
    context: typer.Context,
    group: GroupArgument,
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic",
            "-t",
            metavar="TOPIC[:P,P]",
            help="Default: what it has committed; repeatable.",
            autocompletion=completion.topics,
        ),
    ] = None,
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="The first message there is.")] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="Only what comes from now on.")] = False,
    to_offset: Annotated[int | None, typer.Option(metavar="N", help="This offset.")] = None,
    to_time: Annotated[str | None, typer.Option(metavar="TIME", help="2026-11-15T10:30, or ms since 1970.")] = None,
    by_duration: Annotated[str | None, typer.Option(metavar="5m", help="Rewind by this long, e.g. 2h.")] = None,
    shift: Annotated[int | None, typer.Option(metavar="N", help="By this many messages: 10 forward, -10 back.")] = None,
    execute: Annotated[
        bool, typer.Option("--execute/--dry-run", help="Do it, instead of showing what would be done.")
    ] = False,
    bootstrap: BootstrapOption = None,
    as_json: JsonOption = False,
) -> None:
    """Move a group's offsets. Shows what would happen; --execute does it.

    Examples:

        clarion group reset billing --to-earliest
        clarion group reset billing --by-duration 2h --execute
    """
    goal = goal_of(to_earliest, to_latest, to_offset, to_time, by_duration, shift)
    link = Link.of(context, bootstrap)
    admin = link.admin()
    shared = share_group_view(link, group)
    committed = committed_offsets(admin, link, group) if shared is None else _starts(shared)
    places = chosen_places(admin, link, group, topic, committed)
    rows = _reset_rows(admin, link, places, committed, goal)
    if execute and shared is not None:
        _check_left(group, len(shared.members))
        move_share_group(link, group, {(row["topic"], row["partition"]): row["to"] for row in rows})
    elif execute:
        _check_is_empty(admin, link, group)
        _commit(admin, link, group, rows)
    if as_json:
        show_json({"group": group, "executed": execute, "partitions": rows})
        return
    show_rows(rows, _RESET_COLUMNS, as_json=False)
    print(f"{clean(group)} was moved" if execute else "nothing was changed; add --execute to do it")


@commands.command()
def delete(
    context: typer.Context,
    groups: Annotated[
        list[str], typer.Argument(metavar="GROUP…", help="One or more group ids.", autocompletion=completion.groups)
    ],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    bootstrap: BootstrapOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete groups and the offsets they committed, or what a share group has done.

    Example:

        clarion group delete billing --yes
    """
    link = Link.of(context, bootstrap)
    admin = link.admin()
    for group in groups:
        _describe(admin, link, group)
    confirm(f"delete {', '.join(groups)} and the offsets it committed?", yes)
    futures = admin.delete_consumer_groups(groups)
    for group in groups:
        result_of(futures[group], link, f"delete {group}")
    if as_json:
        show_json([{"group": group, "deleted": True} for group in groups])
    else:
        for group in groups:
            print(f"deleted {clean(group)}")


def committed_offsets(admin: AdminClient, link: Link, group: str) -> dict[Place, int]:
    from confluent_kafka import ConsumerGroupTopicPartitions

    future = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group]
    found = result_of(future, link, f"offsets of {group}")
    return {(each.topic, each.partition): each.offset for each in found.topic_partitions if each.offset >= 0}


_MEMBER_COLUMNS = [
    Column("member", "MEMBER", style="cyan"),
    Column("client", "CLIENT"),
    Column("host", "HOST"),
    Column("instance", "INSTANCE"),
    Column("places", "PARTITIONS", " ".join),
]
_LAG_COLUMNS = [
    Column("topic", "TOPIC", style="cyan"),
    Column("partition", "PARTITION", right=True),
    Column("committed", "COMMITTED", count_text, right=True),
    Column("end_offset", "END", count_text, right=True),
    Column("lag", "LAG", count_text, right=True),
    Column("member", "MEMBER"),
]
_SHARE_COLUMNS = [
    Column("topic", "TOPIC", style="cyan"),
    Column("partition", "PARTITION", right=True),
    Column("start", "DONE BEFORE", count_text, right=True),
    Column("end_offset", "END", count_text, right=True),
    Column("lag", "NOT DONE", count_text, right=True),
]
_RESET_COLUMNS = [
    Column("topic", "TOPIC", style="cyan"),
    Column("partition", "PARTITION", right=True),
    Column("from", "FROM", count_text, right=True),
    Column("to", "TO", count_text, right=True),
    Column("end_offset", "END", count_text, right=True),
    Column("lag", "LAG AFTER", count_text, right=True),
]


def all_groups(admin: AdminClient, link: Link) -> dict[str, Any]:
    found = result_of(admin.list_consumer_groups(), link, "list groups")
    return {each.group_id: each for each in found.valid}


def group_rows(admin: AdminClient, link: Link, count_max: int | None = None) -> list[dict[str, Any]]:
    """Of consumer groups and share groups, by name."""
    shared = set(share_groups(link))
    names = sorted({*all_groups(admin, link), *shared})[:count_max]
    rows = {name: _list_row(admin, link, name) for name in names if name not in shared}
    for view in share_group_views(link, [name for name in names if name in shared]):
        rows[view.group] = {
            "group": view.group,
            "state": view.state,
            "type": SHARE_TYPE,
            "members": len(view.members),
            "lag": view.lag,
        }
    return [rows[name] for name in names if name in rows]


def _list_row(admin: AdminClient, link: Link, group: str) -> dict[str, Any]:
    found = _describe_consumers(admin, link, group)
    lag = sum(row["lag"] or 0 for row in _lag_rows(admin, link, group, {}))
    kind, state = found.type.name.lower(), found.state.name.lower()
    return {"group": group, "state": state, "type": kind, "members": len(found.members), "lag": lag}


def _describe(admin: AdminClient, link: Link, group: str) -> Any:
    """A share group's view, or what the client library tells of another."""
    return share_group_view(link, group) or _describe_consumers(admin, link, group)


def _describe_consumers(admin: AdminClient, link: Link, group: str) -> Any:
    try:
        found = result_of(admin.describe_consumer_groups([group])[group], link, f"group {group}")
    except CliError as error:
        if _is_not_found(error):
            raise CliError(f"there is no group {group}; see them with: clarion group list") from error
        raise
    if found.state.name == _NOT_THERE:
        raise CliError(f"there is no group {group}; see them with: clarion group list")
    return found


def _is_not_found(error: CliError) -> bool:
    from confluent_kafka import KafkaError, KafkaException

    cause = error.__cause__
    return isinstance(cause, KafkaException) and cause.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND


def _show_share_group(admin: AdminClient, link: Link, view: ShareGroupView, *, as_json: bool) -> None:
    ends = end_offsets(admin, link, sorted(view.positions))
    rows = [
        {"topic": place[0], "partition": place[1], "start": at.start, "end_offset": ends[place], "lag": at.lag}
        for place, at in sorted(view.positions.items())
    ]
    members = [{**row, "places": [f"{topic}-{index}" for topic, index in row["places"]]} for row in view.members]
    if as_json:
        told = {"group": view.group, "type": SHARE_TYPE, "state": view.state, "assignor": view.assignor}
        show_json({**told, "members": members, "partitions": rows})
        return
    counted = f"{plural(len(members), 'member')}, {plural(view.lag, 'message')} not done"
    print(f"{clean(view.group)}: share group, {view.state}, {counted}")
    if members:
        show_rows(members, _MEMBER_COLUMNS, as_json=False)
    show_rows(rows, _SHARE_COLUMNS, as_json=False, none="nobody has read anything for it yet")


def _starts(view: ShareGroupView) -> dict[Place, int]:
    return {place: at.start for place, at in view.positions.items() if at.start is not None}


def _member_row(member: Any) -> dict[str, Any]:
    return {
        "member": member.member_id,
        "client": member.client_id,
        "host": member.host,
        "instance": member.group_instance_id,
        "places": [(each.topic, each.partition) for each in member.assignment.topic_partitions],
    }


def _lag_rows(admin: AdminClient, link: Link, group: str, owners: Mapping[Place, str]) -> list[dict[str, Any]]:
    committed = committed_offsets(admin, link, group)
    places = sorted(committed.keys() | owners.keys())
    ends = end_offsets(admin, link, places)
    return [_lag_row(place, committed.get(place), ends[place], owners.get(place)) for place in places]


def _lag_row(place: Place, committed: int | None, end: int, member: str | None) -> dict[str, Any]:
    return {
        "topic": place[0],
        "partition": place[1],
        "committed": committed,
        "end_offset": end,
        "lag": None if committed is None else max(end - committed, 0),
        "member": member,
    }


def _reset_rows(
    admin: AdminClient, link: Link, places: list[Place], committed: Mapping[Place, int], goal: Goal
) -> list[dict[str, Any]]:
    targets = target_offsets(admin, link, places, committed, goal)
    ends = end_offsets(admin, link, places)
    return [
        {
            "topic": place[0],
            "partition": place[1],
            "from": committed.get(place),
            "to": targets[place],
            "end_offset": ends[place],
            "lag": ends[place] - targets[place],
        }
        for place in places
    ]


def _check_is_empty(admin: AdminClient, link: Link, group: str) -> None:
    """Moving a group under its members' feet would be undone by their next commit; brokers refuse it too."""
    try:
        found = result_of(admin.describe_consumer_groups([group])[group], link, f"group {group}")
    except CliError as error:
        if _is_not_found(error):
            return  # committing makes it
        raise
    _check_left(group, len(found.members))


def _check_left(group: str, members: int) -> None:
    if members:
        raise CliError(f"{group} has {plural(members, 'member')}: stop them, then reset")


def _commit(admin: AdminClient, link: Link, group: str, rows: list[dict[str, Any]]) -> None:
    from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition

    wanted = [TopicPartition(row["topic"], row["partition"], row["to"]) for row in rows]
    future = admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, wanted)])[group]
    done = result_of(future, link, f"reset {group}")
    for each in done.topic_partitions:
        if each.error is not None:
            raise CliError(f"reset {group}: {each.topic}-{each.partition}: {each.error.str()}")
