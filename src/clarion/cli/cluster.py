"""`clarion cluster`: who is there, who leads what, which replicas are missing, and what the cluster manager decided."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clarion.cli.errors import CliError
from clarion.cli.link import REQUEST_SECONDS_MAX, BootstrapOption, JsonOption, Link, plain_errors, result_of
from clarion.cli.table import Column, clean, show_json, show_rows
from clarion.cli.units import count_text, plural

if TYPE_CHECKING:
    from clarion.cluster.events import ClusterEvent

commands = typer.Typer(help="Brokers, leaders, replicas, and what the cluster manager decides.")

_ORDER = ("status", "brokers", "partitions", "events", "adopt", "rebalance", "drain")


def add_to(app: typer.Typer) -> None:
    from clarion.cli import cluster_adopt, cluster_moves  # noqa: F401  # the commands that change something

    # Whichever module was imported first: the help has one order.
    commands.registered_commands.sort(key=lambda one: _ORDER.index(getattr(one.callback, "__name__", "")))
    app.add_typer(commands, name="cluster")


@dataclass(frozen=True, slots=True)
class PartitionView:
    topic: str
    partition: int
    leader: int | None  # None: nobody leads it
    replicas: list[int]
    in_sync: list[int]

    @property
    def missing(self) -> list[int]:
        """Replicas that lack something, or whose brokers are away."""
        return [one for one in self.replicas if one not in self.in_sync]


@dataclass(frozen=True, slots=True)
class ClusterView:
    id: str
    controller: int | None
    brokers: list[dict[str, Any]]
    partitions: list[PartitionView]

    @property
    def offline(self) -> list[PartitionView]:
        return [one for one in self.partitions if one.leader is None]

    @property
    def under_replicated(self) -> list[PartitionView]:
        return [one for one in self.partitions if one.missing]

    @property
    def with_one_replica(self) -> list[str]:
        """Topics whose messages are on one broker alone."""
        return sorted({one.topic for one in self.partitions if len(one.replicas) == 1})


@commands.command()
def status(context: typer.Context, bootstrap: BootstrapOption = None, as_json: JsonOption = False) -> None:
    """Tell in a few sentences how the cluster is."""
    view = look(Link.of(context, bootstrap))
    if as_json:
        show_json(
            {
                "cluster": view.id,
                "controller": view.controller,
                "brokers": [one["id"] for one in view.brokers],
                "partitions": len(view.partitions),
                "under_replicated": [_name(one) for one in view.under_replicated],
                "offline": [_name(one) for one in view.offline],
                "topics_with_one_replica": view.with_one_replica,
            }
        )
        return
    for sentence in sentences(view):
        print(clean(sentence))


def sentences(view: ClusterView) -> list[str]:
    topics = {one.topic for one in view.partitions}
    decides = "nobody decides for it now" if view.controller is None else f"broker {view.controller} decides for it"
    told = [
        f"cluster {view.id}: {plural(len(view.brokers), 'broker')}, {decides}; "
        f"{plural(len(topics), 'topic')} with {plural(len(view.partitions), 'partition')}"
    ]
    if view.offline:
        told.append(f"nobody leads {_some(view.offline)}: they can be neither read nor written")
    if view.under_replicated:
        told.append(f"replicas are missing, or lack something, of {_some(view.under_replicated)}")
    elif view.partitions and not view.offline:
        told.append("every replica has everything")
    if view.with_one_replica and len(view.brokers) > 1:
        names = ", ".join(view.with_one_replica[:5]) + (", …" if len(view.with_one_replica) > 5 else "")
        told.append(f"on one broker alone: {names}")
    return told


@commands.command()
def brokers(context: typer.Context, bootstrap: BootstrapOption = None, as_json: JsonOption = False) -> None:
    """List the brokers that are there, and what each of them has."""
    view = look(Link.of(context, bootstrap))
    leads = Counter(one.leader for one in view.partitions)
    holds = Counter(replica for one in view.partitions for replica in one.replicas)
    in_sync = Counter(replica for one in view.partitions for replica in one.in_sync)
    rows = [
        {
            **one,
            "controller": one["id"] == view.controller,
            "leads": leads[one["id"]],
            "replicas": holds[one["id"]],
            "in_sync": in_sync[one["id"]],
        }
        for one in view.brokers
    ]
    columns = [
        Column("id", "BROKER", right=True, style="cyan"),
        Column("address", "ADDRESS"),
        Column("rack", "RACK"),
        Column("controller", "CONTROLLER", lambda one: "yes" if one else ""),
        Column("leads", "LEADS", count_text, right=True),
        Column("replicas", "REPLICAS", count_text, right=True),
        Column("in_sync", "IN SYNC", count_text, right=True),
    ]
    show_rows(rows, columns, as_json=as_json, none="no brokers")


@commands.command()
def partitions(
    context: typer.Context,
    topic: Annotated[str | None, typer.Option("--topic", "-t", help="Of this topic alone.")] = None,
    under_replicated: Annotated[bool, typer.Option("--under-replicated", help="Only with replicas missing.")] = False,
    offline: Annotated[bool, typer.Option("--offline", help="Only those that nobody leads.")] = False,
    bootstrap: BootstrapOption = None,
    as_json: JsonOption = False,
) -> None:
    """List partitions with their leaders, replicas and who is in sync."""
    view = look(Link.of(context, bootstrap))
    shown = [
        one
        for one in view.partitions
        if topic in (None, one.topic) and (one.missing or not under_replicated) and (one.leader is None or not offline)
    ]
    if topic is not None and not any(one.topic == topic for one in view.partitions):
        raise CliError(f"there is no topic {topic!r}")
    rows = [
        {
            "topic": one.topic,
            "partition": one.partition,
            "leader": one.leader,
            "replicas": one.replicas,
            "in_sync": one.in_sync,
            "missing": one.missing,
        }
        for one in shown
    ]
    columns = [
        Column("topic", "TOPIC", style="cyan"),
        Column("partition", "PARTITION", right=True),
        Column("leader", "LEADER", right=True),
        Column("replicas", "REPLICAS", _ids),
        Column("in_sync", "IN SYNC", _ids),
        Column("missing", "MISSING", _ids),
    ]
    show_rows(rows, columns, as_json=as_json, none="none")


ClusterOption = Annotated[
    str | None,
    typer.Option("--cluster", metavar="ADDRESS", help="The cluster's store: file:PATH or etcd://HOST:PORT."),
]
DataDirOption = Annotated[
    str, typer.Option("--data-dir", metavar="PATH", help="Of `serve --brokers`, where --cluster is not given.")
]


@commands.command()
def events(
    cluster: ClusterOption = None,
    data_dir: DataDirOption = "clarion-data",
    as_json: JsonOption = False,
) -> None:
    """Tell what the cluster manager decided lately, and why."""
    told = _events(_store_address(cluster, data_dir))
    if as_json:
        show_json([{"at": _time(one.at_ms), "event": one.sentence} for one in told])
        return
    for one in told:
        print(f"{_time(one.at_ms)}  {clean(one.sentence)}")
    if not told:
        print("nothing was decided yet")


def _store_address(cluster: str | None, data_dir: str) -> str:
    from clarion.cluster.opening import InvalidAddressError, check_address, folder_of
    from clarion.log.data_directory import STORE_FOLDER

    address = cluster or os.environ.get("CLARION_CLUSTER")
    if address is None:
        folder = os.path.join(os.path.abspath(os.path.expanduser(data_dir)), STORE_FOLDER)
        if not os.path.isdir(folder):
            raise CliError(f"{data_dir} holds no cluster; say which one, with --cluster or --data-dir")
        return f"file:{folder}"
    try:
        check_address(address)
    except InvalidAddressError as error:
        raise CliError(f"--cluster {address}: {error}") from error
    folder_told = folder_of(address)
    if folder_told is not None and not os.path.isdir(folder_told):
        raise CliError(f"--cluster {address}: there is no such folder")
    return address


def _events(address: str) -> list[ClusterEvent]:
    import asyncio

    from clarion.cluster import StoreError
    from clarion.cluster.events import read_events
    from clarion.cluster.opening import open_store

    async def read() -> list[ClusterEvent]:
        store = await open_store(address, lambda _error: None)
        try:
            return await read_events(store)
        finally:
            await store.close()

    try:
        return asyncio.run(read())
    except (StoreError, OSError) as error:
        raise CliError(f"the store {address} cannot be read: {error}") from error


def look(link: Link) -> ClusterView:
    """One picture of the whole cluster, as one broker sees it."""
    admin = link.admin()
    with plain_errors(link):
        found = admin.list_topics(timeout=REQUEST_SECONDS_MAX)
    described = result_of(admin.describe_cluster(), link, "asking for the cluster")
    racks = {node.id: node.rack for node in described.nodes}
    known = {
        number: {"id": number, "address": f"{one.host}:{one.port}", "rack": racks.get(number)}
        for number, one in sorted(found.brokers.items())
    }
    views = [
        PartitionView(name, index, one.leader if one.leader in known else None, list(one.replicas), sorted(one.isrs))
        for name, topic in sorted(found.topics.items())
        for index, one in sorted(topic.partitions.items())
    ]
    controller = found.controller_id if found.controller_id in known else None
    return ClusterView(found.cluster_id or "", controller, list(known.values()), views)


def _name(one: PartitionView) -> str:
    return f"{one.topic}-{one.partition}"


def _some(many: list[PartitionView]) -> str:
    shown = ", ".join(_name(one) for one in many[:5])
    return f"{plural(len(many), 'partition')} ({shown}{', …' if len(many) > 5 else ''})"


def _ids(ids: Iterable[int]) -> str:
    return ", ".join(map(str, ids))


def _time(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(sep=" ", timespec="milliseconds")
