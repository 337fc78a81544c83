"""From what a request names to what it means: the one place where topics, partitions and groups are found, or the
reason why they are not; and where it is asked whether the client may do what it wants with them.

    …_AUTHORIZATION_FAILED       the client may not; of a topic it does not even hear whether it exists
    UNKNOWN_TOPIC_OR_PARTITION   no topic has this name, or it has no such partition
    UNKNOWN_TOPIC_ID             no topic has this id
    NOT_LEADER_OR_FOLLOWER       another broker leads the partition: ask for metadata again
    FENCED_LEADER_EPOCH          the client knows an earlier term of this leader than the present one (KIP-320)
    UNKNOWN_LEADER_EPOCH         the client knows a later one: this broker has yet to hear of it
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from clarion.broker.authorizer import (
    THE_CLUSTER,
    AllowEverything,
    Authorizer,
    Operation,
    Principal,
    ResourceKind,
    refused,
)
from clarion.broker.partitions import Partitions
from clarion.cluster import Topic, TopicRegistry
from clarion.model.errors import ErrorCode, KafkaError
from clarion.model.ids import TopicId
from clarion.replication import Partition
from clarion.wire.current_leader import CurrentLeader

ANY_EPOCH = -1
_LED_BY_ANOTHER: Final = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)


class Resolver:
    def __init__(self, registry: TopicRegistry, partitions: Partitions, authorizer: Authorizer | None = None) -> None:
        self._registry = registry
        self._partitions = partitions
        self._authorizer = authorizer or AllowEverything()
        self._version = 1

    @property
    def version(self) -> int:
        """What was resolved under another one has to be resolved again."""
        return self._version

    def change(self) -> None:
        """Leadership, epochs, settings or permissions are no longer what they were."""
        self._version += 1

    @property
    def authorizer(self) -> Authorizer:
        return self._authorizer

    @authorizer.setter
    def authorizer(self, authorizer: Authorizer) -> None:
        self._authorizer = authorizer
        self.change()

    # May they?

    def allows(self, who: Principal, operation: Operation, kind: ResourceKind, name: str) -> bool:
        return self._authorizer.allows(who, operation, kind, name)

    def require(self, who: Principal, operation: Operation, kind: ResourceKind, name: str) -> None:
        if not self._authorizer.allows(who, operation, kind, name):
            raise refused(operation, kind, name)

    def require_cluster(self, who: Principal, operation: Operation) -> None:
        self.require(who, operation, ResourceKind.CLUSTER, THE_CLUSTER)

    def require_group(self, who: Principal, operation: Operation, group_id: str) -> None:
        self.require(who, operation, ResourceKind.GROUP, group_id)

    def require_topic(self, who: Principal, operation: Operation, name: str) -> None:
        """Before it is known whether there is one."""
        self.require(who, operation, ResourceKind.TOPIC, name)

    def require_creation(self, who: Principal, name: str) -> None:
        """Who may create topics in the cluster may create any; others those that they may."""
        if not self.allows(who, Operation.CREATE, ResourceKind.CLUSTER, THE_CLUSTER):
            self.require_topic(who, Operation.CREATE, name)

    def authorized(self, who: Principal, kind: ResourceKind, name: str, operations: Iterable[Operation]) -> int:
        """Which of these operations are allowed, one bit each (KIP-430)."""
        return sum(1 << one for one in operations if self.allows(who, one, kind, name))

    # What is it?

    def topic(self, who: Principal, operation: Operation, name: str) -> Topic:
        if not self._authorizer.allows(who, operation, ResourceKind.TOPIC, name):
            raise refused(operation, ResourceKind.TOPIC, name)
        topic = self._registry.image.topics.get(name)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}")
        return topic

    def topic_by_id(self, who: Principal, operation: Operation, topic_id: TopicId) -> Topic:
        topic = self._registry.image.topics_by_id.get(topic_id)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, f"there is no topic with the id {topic_id}")
        if not self._authorizer.allows(who, operation, ResourceKind.TOPIC, topic.name):
            raise refused(operation, ResourceKind.TOPIC, str(topic_id))
        return topic

    def topics(self, who: Principal, operation: Operation) -> Iterator[Topic]:
        """All of them that the client may know."""
        for topic in self._registry.image.topics.values():
            if self._authorizer.allows(who, operation, ResourceKind.TOPIC, topic.name):
                yield topic

    def check_exists(self, topic: Topic, index: int) -> None:
        """Whoever leads it."""
        if not 0 <= index < len(topic.partitions):
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {topic.name}-{index}")

    def partition(self, topic: Topic, index: int, leader_epoch: int = ANY_EPOCH) -> Partition:
        """One that this broker leads. `leader_epoch`: the term in which the client believes it to be led."""
        partition = self.replica(topic, index)
        check_leader_epoch(leader_epoch, partition)
        partition.check_leads()
        return partition

    def replica(self, topic: Topic, index: int) -> Partition:
        """One that this broker has, whoever leads it."""
        partition = self._partitions.find(topic.id, index)
        if partition is None:
            self.check_exists(topic, index)
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{topic.name}-{index} is led by another broker")
        return partition

    def leader_instead(
        self, code: int, name: str, topic_id: TopicId, index: int, listener: int
    ) -> CurrentLeader | None:
        """The broker that a client of this listener should have asked, where this one is not it (KIP-951)."""
        if code not in _LED_BY_ANOTHER:
            return None
        image = self._registry.image
        topic = image.topics.get(name) or image.topics_by_id.get(topic_id)
        if topic is None or not 0 <= index < len(topic.partitions):
            return None
        state = topic.partitions[index]
        leader = image.brokers.get(state.leader)
        if leader is None:
            return None
        return CurrentLeader(leader.id, state.leader_epoch, *leader.endpoint(listener), leader.rack)


def check_leader_epoch(asked: int, partition: Partition) -> None:
    """A client with stale metadata is fenced, one that knows a later term than we do has to wait; -1 knows nothing."""
    if asked < 0 or asked == partition.leader_epoch:
        return
    is_fenced = asked < partition.leader_epoch
    raise KafkaError(
        ErrorCode.FENCED_LEADER_EPOCH if is_fenced else ErrorCode.UNKNOWN_LEADER_EPOCH,
        f"{partition.tp} is in epoch {partition.leader_epoch}",
    )
