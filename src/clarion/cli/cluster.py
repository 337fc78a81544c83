"""`clarion cluster`: who is there, who leads what, which replicas are missing, and what the cluster manager decided."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final

import typer

from clarion.cli.errors import UsageError
from clarion.cli.known_topics import describe_topic
from clarion.cli.link import REQUEST_SECONDS_MAX, BootstrapOption, JsonOption, Link, plain_errors, result_of
from clarion.cli.table import Column, clean, show_json, show_rows
from clarion.cli.units import count_text, parse_duration_ms, plural

commands = typer.Typer(help="Brokers, leaders, replicas, and what the cluster manager decides.")

_INTERVAL_MS_MIN: Final = 100
_ORDER = ("status", "brokers", "partitions", "events", "adopt", "rebalance", "drain")


def add_to(app: typer.Typer) -> None:
    from clarion.cli import cluster_adopt, cluster_events, cluster_moves  # noqa: F401  # the other commands

    # Whichever module was imported first: the help has one order.
    commands.registered_commands.sort(key=lambda one: _ORDER.index(getattr(one.callback, "__name__", "")))
    app.add_typer(commands, name="cluster")


Filled = Mapping[tuple[str, int, int], float]  # how much of a replica is there, by topic, partition and broker


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
    def away(self) -> list[int]:
        """Brokers that hold replicas, and are not there."""
        there = {one["id"] for one in self.brokers}
        return sorted({replica for one in self.partitions for replica in one.replicas} - there)

    @property
    def under_replicated(self) -> list[PartitionView]:
        return [one for one in self.partitions if one.missing]

    @property
    def with_one_replica(self) -> list[str]:
        """Topics whose messages are on one broker alone."""
        return sorted({one.topic for one in self.partitions if len(one.replicas) == 1})


@commands.command()
def status(
    context: typer.Context,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Look again and again; Ctrl-C ends.")] = False,
    interval: Annotated[str, typer.Option(metavar="2s", help="How often, with --watch.")] = "2s",
    count: Annotated[int | None, typer.Option("--count", "-n", metavar="N", help="End after N looks.")] = None,
    bootstrap: BootstrapOption = None,
    as_json: JsonOption = False,
) -> None:
    """Tell in a few sentences how the cluster is.

    With --watch also its brokers, the partitions that lack something, and what was decided, on one screen.

    Example:

        clarion cluster status --watch --count 1
    """
    link = Link.of(context, bootstrap)
    if watch:
        from clarion.cli.cluster_watch import watch as watch_status

        pause_ms = parse_duration_ms(interval)
        if pause_ms < _INTERVAL_MS_MIN or (count is not None and count < 1):
            raise UsageError(f"--interval {interval}, --count {count}: at least {_INTERVAL_MS_MIN}ms, and 1")
        watch_status(link, pause_ms / 1000, count)
        return
    view = look(link)
    if as_json:
        show_json(
            {
                "cluster": view.id,
                "controller": view.controller,
                "brokers": [one["id"] for one in view.brokers],
                "away": view.away,
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
    if view.away:
        told.append(f"{_away(view.away)}")
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
    from clarion.cli.cluster_moves import drained_or_unknown

    link = Link.of(context, bootstrap)
    view = look(link)
    drained = drained_or_unknown(link, view)
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
            "drained": drained[one["id"]],
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
        Column("drained", "DRAINED", lambda one: "?" if one is None else "yes" if one else ""),
    ]
    show_rows(rows, columns, as_json=as_json, none="no brokers")


@commands.command()
def partitions(
    context: typer.Context,
    topic: Annotated[str | None, typer.Option("--topic", "-t", help="Of this topic alone, by name or id.")] = None,
    under_replicated: Annotated[bool, typer.Option("--under-replicated", help="Only with replicas missing.")] = False,
    offline: Annotated[bool, typer.Option("--offline", help="Only those that nobody leads.")] = False,
    bootstrap: BootstrapOption = None,
    as_json: JsonOption = False,
) -> None:
    """List partitions with their leaders, replicas and who is in sync; of those that are being filled, how far."""
    link = Link.of(context, bootstrap)
    topic = None if topic is None else describe_topic(link.admin(), link, topic).name
    view = look(link)
    shown = [
        one
        for one in view.partitions
        if topic in (None, one.topic) and (one.missing or not under_replicated) and (one.leader is None or not offline)
    ]
    filled = filled_shares(link, view)
    rows = [
        {
            "topic": one.topic,
            "partition": one.partition,
            "leader": one.leader,
            "replicas": one.replicas,
            "in_sync": one.in_sync,
            "missing": one.missing if as_json else missing_text(one, filled),
        }
        for one in shown
    ]
    columns = [
        Column("topic", "TOPIC", style="cyan"),
        Column("partition", "PARTITION", right=True),
        Column("leader", "LEADER", right=True),
        Column("replicas", "REPLICAS", _ids),
        Column("in_sync", "IN SYNC", _ids),
        Column("missing", "MISSING"),
    ]
    show_rows(rows, columns, as_json=as_json, none="none")


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


def filled_shares(link: Link, view: ClusterView) -> Filled:
    """By bytes on disk; nothing of brokers that are away, or of a cluster where nobody tells."""
    from clarion.cli.log_dirs import disk_sizes

    lacking = [one for one in view.under_replicated if one.leader is not None]
    sizes = (disk_sizes(link.admin(), link) if lacking else None) or {}
    shares: dict[tuple[str, int, int], float] = {}
    for one in lacking:
        whole = sizes.get(one.leader or 0, {}).get((one.topic, one.partition), 0)
        for number in one.missing:
            part = sizes.get(number, {}).get((one.topic, one.partition))
            if part is not None and whole > 0:
                shares[one.topic, one.partition, number] = min(part / whole, 1.0)
    return shares


def missing_text(one: PartitionView, filled: Filled) -> str:
    """The brokers whose replicas lack something, and how much of each is there: `3 (42%)`."""
    shares = [(number, filled.get((one.topic, one.partition, number))) for number in one.missing]
    return ", ".join(str(number) if share is None else f"{number} ({share:.0%})" for number, share in shares)


def _name(one: PartitionView) -> str:
    return f"{one.topic}-{one.partition}"


def _some(many: list[PartitionView]) -> str:
    shown = ", ".join(_name(one) for one in many[:5])
    return f"{plural(len(many), 'partition')} ({shown}{', …' if len(many) > 5 else ''})"


def _away(brokers: list[int]) -> str:
    return f"broker {brokers[0]} is away" if len(brokers) == 1 else f"the brokers {_ids(brokers)} are away"


def _ids(ids: Iterable[int]) -> str:
    return ", ".join(map(str, ids))
