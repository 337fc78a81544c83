"""The numbers of replication: of what this broker leads, and of the whole cluster where this broker is its controller.

Counted when somebody asks, in one pass over the partitions; a broker without a cluster has them too, and they are dull.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from clarion.broker.metrics_page import Metric, Sample
from clarion.cluster import ClusterImage, PartitionState
from clarion.cluster.schema import UNSAID
from clarion.replication import Partition

if TYPE_CHECKING:
    from clarion.broker.broker import Broker


@dataclass(slots=True)
class Counted:
    """What one pass has found."""

    brokers: int = 1
    is_controller: bool = True
    led: int = 0
    under_replicated: int = 0
    under_min_in_sync: int = 0
    reassigning: int = 0
    without_leader: int = 0
    in_sync_shrinks: int = 0
    in_sync_expands: int = 0
    elections: int = 0
    election_seconds: float = 0.0
    lags: dict[int, int] = field(default_factory=dict)  # by follower: the most that it lacks of any partition


OF_THE_CLUSTER: Final[tuple[tuple[Metric, Callable[[Counted], float]], ...]] = (
    (
        Metric("clarion_brokers", "gauge", "Brokers of the cluster that are there, as this one knows."),
        lambda one: one.brokers,
    ),
    (
        Metric("clarion_active_controller", "gauge", "1 on the broker that decides for all, 0 on the others."),
        lambda one: one.is_controller,
    ),
    (
        Metric("clarion_partitions_led", "gauge", "Partitions that this broker leads."),
        lambda one: one.led,
    ),
    (
        Metric(
            "clarion_partitions_under_replicated",
            "gauge",
            "Partitions led here with fewer replicas in sync than they have; those being filled do not count.",
        ),
        lambda one: one.under_replicated,
    ),
    (
        Metric(
            "clarion_partitions_under_min_in_sync",
            "gauge",
            "Partitions led here with fewer in sync than min.insync.replicas: acks=all is refused.",
        ),
        lambda one: one.under_min_in_sync,
    ),
    (
        Metric("clarion_partitions_reassigning", "gauge", "Partitions led here that are moving to other brokers."),
        lambda one: one.reassigning,
    ),
    (
        Metric(
            "clarion_partitions_without_leader",
            "gauge",
            "Partitions of the cluster that nobody leads; told by the controller, 0 on the others.",
        ),
        lambda one: one.without_leader,
    ),
    (
        Metric("clarion_in_sync_shrinks_total", "counter", "In-sync sets led here that somebody has left."),
        lambda one: one.in_sync_shrinks,
    ),
    (
        Metric("clarion_in_sync_expands_total", "counter", "In-sync sets led here that somebody has joined."),
        lambda one: one.in_sync_expands,
    ),
    (
        Metric("clarion_leader_elections_total", "counter", "Leaders that this broker has elected as the controller."),
        lambda one: one.elections,
    ),
    (
        Metric(
            "clarion_leader_election_seconds_total",
            "counter",
            "Time from the news that called for those elections until they were written, of all of them together.",
        ),
        lambda one: one.election_seconds,
    ),
)
REPLICATION_LAG: Final = Metric(
    "clarion_replication_lag_messages",
    "gauge",
    "The most messages that a follower lacks of any partition led here.",
    ("follower",),
)


def cluster_samples(broker: Broker) -> Iterator[Sample]:
    counted = count(broker)
    for metric, value in OF_THE_CLUSTER:
        yield metric.name, (), float(value(counted))
    for follower, lag in sorted(counted.lags.items()):
        yield REPLICATION_LAG.name, (str(follower),), lag


def count(broker: Broker) -> Counted:
    counted, image, node = Counted(), broker.image, broker.node
    for partition in broker.partitions:
        topic = image.topics_by_id.get(partition.topic_id)
        if partition.is_leader and topic is not None:
            _count_led(counted, partition, topic.partitions[partition.tp.partition])
    if node is not None:
        counted.brokers = len(image.brokers)
        counted.in_sync_shrinks, counted.in_sync_expands = node.in_sync_changes
        controller = node.controller
        counted.is_controller = controller is not None and controller.is_active
        if controller is not None:
            counted.elections = controller.elections_total
            counted.election_seconds = controller.election_seconds_total
        if counted.is_controller:
            counted.without_leader = _without_leader(image)
    return counted


def _count_led(counted: Counted, partition: Partition, state: PartitionState) -> None:
    counted.led += 1
    counted.under_min_in_sync += not partition.takes_all
    counted.under_replicated += len(state.in_sync) < len(state.replicas) - len(state.adding)
    counted.reassigning += bool(state.adding or state.removing)
    for follower, lag in partition.follower_lags():
        counted.lags[follower] = max(lag, counted.lags.get(follower, 0))


def _without_leader(image: ClusterImage) -> int:
    return sum(
        1
        for topic in image.topics.values()
        for state in topic.partitions
        if state is not UNSAID and state.leader not in image.brokers
    )
