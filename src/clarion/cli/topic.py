"""`clarion topic`: create, list, describe, alter and delete topics."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from clarion.cli.errors import CliError, UsageError
from clarion.cli.holders import HOLDER_COLUMNS, holder_rows
from clarion.cli.known_topics import all_topics, check_name, describe_topic
from clarion.cli.link import BootstrapOption, JsonOption, Link, admin_api, result_of
from clarion.cli.log_dirs import disk_sizes, holders
from clarion.cli.offsets import Place, end_offsets, start_offsets
from clarion.cli.table import Column, clean, show_json, show_rows
from clarion.cli.topic_arguments import ConfigOption, NameArgument, NamesArgument, UnsetOption, settings_of
from clarion.cli.units import bytes_text, count_text, plural

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

Offsets = dict[Place, int]
Sizes = dict[int, dict[Place, int]]  # by broker

commands = typer.Typer(help="Create, list, describe, alter and delete topics.")

# librdkafka makes no request with more.
_PARTITIONS_MAX: Final = 100_000
_REPLICATION_FACTOR_MAX: Final = 10_000


def add_to(app: typer.Typer) -> None:
    app.add_typer(commands, name="topic")


@commands.command()
def create(
    context: typer.Context,
    names: Annotated[list[str], typer.Argument(metavar="TOPIC…", help="One or more topic names.")],
    partitions: Annotated[int, typer.Option("--partitions", "-p", metavar="N", help="-1: the broker's default.")] = -1,
    replication_factor: Annotated[int, typer.Option(metavar="N", help="-1: the broker's default.")] = -1,
    config: ConfigOption = None,
    if_not_exists: Annotated[bool, typer.Option(help="Succeed when the topic is there already.")] = False,
    bootstrap: BootstrapOption = None,
    as_json: JsonOption = False,
) -> None:
    """Create topics.

    Example:

        clarion topic create orders --partitions 6 --config retention.ms=1d
    """
    for name in names:
        check_name(name)
    _check_count("--partitions", partitions, _PARTITIONS_MAX)
    _check_count("--replication-factor", replication_factor, _REPLICATION_FACTOR_MAX)
    settings = settings_of(config)
    link = Link.of(context, bootstrap)
    admin = link.admin()
    wanted = [admin_api().NewTopic(name, partitions, replication_factor, config=settings) for name in names]
    futures = admin.create_topics(wanted)
    rows = [{"topic": name, "created": _created(futures[name], link, name, if_not_exists)} for name in names]
    _report(
        rows, as_json, lambda row: f"created {row['topic']}" if row["created"] else f"{row['topic']} exists already"
    )


@commands.command("list")
def list_(
    context: typer.Context,
    internal: Annotated[bool, typer.Option("--internal", help="Show internal topics too.")] = False,
    bootstrap: BootstrapOption = None,
    as_json: JsonOption = False,
) -> None:
    """List topics with their partitions, messages and the disk they take, replicas included.

    Example:

        clarion topic list --internal
    """
    link = Link.of(context, bootstrap)
    admin = link.admin()
    found = {name: sorted(topic.partitions) for name, topic in all_topics(admin, link).items()}
    shown = {name: found[name] for name in sorted(found) if internal or not name.startswith("__")}
    places = [(name, partition) for name, partitions in shown.items() for partition in partitions]
    starts, ends = start_offsets(admin, link, places), end_offsets(admin, link, places)
    sizes = disk_sizes(admin, link)
    rows = [_list_row(name, partitions, starts, ends, sizes) for name, partitions in shown.items()]
    columns = [
        Column("topic", "TOPIC", style="cyan"),
        Column("partitions", "PARTITIONS", count_text, right=True),
        Column("messages", "MESSAGES", count_text, right=True),
        Column("size_bytes", "SIZE", bytes_text, right=True),
    ]
    show_rows(rows, columns, as_json=as_json, none="no topics yet; create one with: clarion topic create NAME")


@commands.command()
def describe(
    context: typer.Context,
    name: NameArgument,
    all_settings: Annotated[bool, typer.Option("--all", help="Show settings at their defaults too.")] = False,
    bootstrap: BootstrapOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a topic's settings, its partitions, and who needs its messages since when.

    Example:

        clarion topic describe orders --all
    """
    link = Link.of(context, bootstrap)
    admin = link.admin()
    topic = describe_topic(admin, link, name)
    name = topic.name  # who asked may have said its id
    places = [(name, each.id) for each in topic.partitions]
    starts, ends = start_offsets(admin, link, places), end_offsets(admin, link, places)
    sizes = disk_sizes(admin, link)
    partitions = [_partition_row(name, each, starts, ends, sizes) for each in topic.partitions]
    settings = [row for row in _setting_rows(admin, link, name) if all_settings or not row["is_default"]]
    needed = holder_rows(holders(admin, link, name, [each.id for each in topic.partitions]) or ())
    if as_json:
        described = {"topic": name, "id": _id_text(topic), "settings": settings, "partitions": partitions}
        show_json({**described, "needed_by": needed})
        return
    messages = sum(each["messages"] for each in partitions)
    taken = "" if sizes is None else f", {bytes_text(_disk_bytes(name, sizes))} on disk"
    held = f"{plural(len(partitions), 'partition')}, {plural(messages, 'message')}{taken}"
    print(f"{clean(name)}: {held}, id {_id_text(topic)}")
    show_rows(settings, _SETTING_COLUMNS, as_json=False, none="every setting has its default (see them with --all)")
    show_rows(partitions, _PARTITION_COLUMNS, as_json=False)
    if needed:
        show_rows(needed, HOLDER_COLUMNS, as_json=False)


@commands.command()
def alter(
    context: typer.Context,
    name: NameArgument,
    config: ConfigOption = None,
    unset: UnsetOption = None,
    partitions: Annotated[
        int | None, typer.Option("--partitions", "-p", metavar="N", help="The new, larger number.")
    ] = None,
    bootstrap: BootstrapOption = None,
    as_json: JsonOption = False,
) -> None:
    """Change a topic's settings, or give it more partitions.

    Example:

        clarion topic alter orders --config retention.ms=1h --unset cleanup.policy
    """
    settings = settings_of(config)
    removed = list(unset or ())
    if not settings and not removed and partitions is None:
        raise UsageError("nothing to change: give --config NAME=VALUE, --unset NAME or --partitions N")
    if both := sorted(settings.keys() & set(removed)):
        raise UsageError(f"{both[0]} is both set and unset")
    if partitions is not None:
        _check_new_count(partitions)  # before anything is changed
    link = Link.of(context, bootstrap)
    admin = link.admin()
    name = describe_topic(admin, link, name).name
    if settings or removed:
        _alter_settings(admin, link, name, settings, removed)
    if partitions is not None:
        _grow(admin, link, name, partitions)
    row = {"topic": name, "set": settings, "unset": removed, "partitions": partitions}
    _report([row], as_json, lambda _: f"altered {name}")


@commands.command()
def delete(
    context: typer.Context,
    names: NamesArgument,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    bootstrap: BootstrapOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete topics and everything in them.

    Example:

        clarion topic delete orders --yes
    """
    link = Link.of(context, bootstrap)
    admin = link.admin()
    names = [describe_topic(admin, link, name).name for name in names]
    confirm(f"delete {', '.join(names)} and every message in it?", yes)
    futures = admin.delete_topics(names)
    for name in names:
        result_of(futures[name], link, f"delete {name}")
    _report([{"topic": name, "deleted": True} for name in names], as_json, lambda row: f"deleted {row['topic']}")


_SETTING_COLUMNS = [
    Column("name", "SETTING", style="cyan"),
    Column("value", "VALUE"),
    Column("is_default", "DEFAULT", lambda each: "yes" if each else ""),
]
_PARTITION_COLUMNS = [
    Column("partition", "PARTITION", right=True, style="cyan"),
    Column("leader", "LEADER", right=True),
    Column("replicas", "REPLICAS", lambda ids: ",".join(map(str, ids))),
    Column("in_sync", "IN SYNC", lambda ids: ",".join(map(str, ids))),
    Column("start_offset", "START", count_text, right=True),
    Column("end_offset", "END", count_text, right=True),
    Column("messages", "MESSAGES", count_text, right=True),
    Column("size_bytes", "SIZE", bytes_text, right=True),
]


def _id_text(topic: Any) -> str:
    """As Kafka's own tools spell it, in base64 for URLs; librdkafka uses the other alphabet."""
    return str(topic.topic_id).replace("+", "-").replace("/", "_")


def _check_count(flag: str, count: int, count_max: int) -> None:
    if count == 0 or not -1 <= count <= count_max:
        raise UsageError(f"{flag} {count}: a number from 1 to {count_max:,}, or -1 for the broker's default")


def _check_new_count(partitions: int) -> None:
    if not 1 <= partitions <= _PARTITIONS_MAX:
        raise UsageError(
            f"--partitions {partitions}: a number from 1 to {_PARTITIONS_MAX:,}, larger than what the topic has"
        )


def _created(future: Any, link: Link, name: str, if_not_exists: bool) -> bool:
    from confluent_kafka import KafkaError as ClientError
    from confluent_kafka import KafkaException

    try:
        result_of(future, link, f"create {name}")
        return True
    except CliError as error:
        cause = error.__cause__
        exists = isinstance(cause, KafkaException) and cause.args[0].code() == ClientError.TOPIC_ALREADY_EXISTS
        if exists and if_not_exists:
            return False
        raise


def _list_row(
    name: str, partitions: Sequence[int], starts: Offsets, ends: Offsets, sizes: Sizes | None
) -> dict[str, Any]:
    messages = sum(ends[name, each] - starts[name, each] for each in partitions)
    size = None if sizes is None else _disk_bytes(name, sizes)
    return {"topic": name, "partitions": len(partitions), "messages": messages, "size_bytes": size}


def _disk_bytes(topic: str, sizes: Sizes) -> int:
    """On all brokers together."""
    return sum(size for of_broker in sizes.values() for (name, _), size in of_broker.items() if name == topic)


def _partition_row(name: str, partition: Any, starts: Offsets, ends: Offsets, sizes: Sizes | None) -> dict[str, Any]:
    start, end = starts[name, partition.id], ends[name, partition.id]
    of_leader = (sizes or {}).get(partition.leader.id if partition.leader is not None else -1, {})
    return {
        "partition": partition.id,
        "leader": partition.leader.id if partition.leader is not None else None,
        "replicas": [node.id for node in partition.replicas],
        "in_sync": [node.id for node in partition.isr],
        "start_offset": start,
        "end_offset": end,
        "messages": end - start,
        "size_bytes": of_leader.get((name, partition.id)),
    }


def _setting_rows(admin: AdminClient, link: Link, name: str) -> list[dict[str, Any]]:
    resource = admin_api().ConfigResource(admin_api().ConfigResource.Type.TOPIC, name)
    entries = result_of(admin.describe_configs([resource])[resource], link, f"settings of {name}")
    topic_source = admin_api().ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    return [
        {"name": entry.name, "value": entry.value, "is_default": entry.source != topic_source}
        for entry in sorted(entries.values(), key=lambda each: each.name)
    ]


def _alter_settings(
    admin: AdminClient, link: Link, name: str, settings: dict[str, str], removed: Iterable[str]
) -> None:
    entries = [
        *(
            admin_api().ConfigEntry(key, value, incremental_operation=admin_api().AlterConfigOpType.SET)
            for key, value in settings.items()
        ),
        *(
            admin_api().ConfigEntry(key, None, incremental_operation=admin_api().AlterConfigOpType.DELETE)
            for key in removed
        ),
    ]
    resource = admin_api().ConfigResource(admin_api().ConfigResource.Type.TOPIC, name, incremental_configs=entries)
    result_of(admin.incremental_alter_configs([resource])[resource], link, f"alter {name}")


def _grow(admin: AdminClient, link: Link, name: str, partitions: int) -> None:
    result_of(admin.create_partitions([admin_api().NewPartitions(name, partitions)])[name], link, f"alter {name}")


def confirm(question: str, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(f"{question} Say so with --yes")
    if not typer.confirm(clean(question)):
        raise typer.Exit(1)


def _report(rows: Sequence[dict[str, Any]], as_json: bool, sentence: Callable[[dict[str, Any]], str]) -> None:
    if as_json:
        show_json(list(rows))
    else:
        for row in rows:
            print(clean(sentence(row)))
