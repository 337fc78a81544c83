"""From what a request names to what it means: the one place where topics and partitions are found, or the reason why
they are not.

    UNKNOWN_TOPIC_OR_PARTITION   no topic has this name, or it has no such partition
    UNKNOWN_TOPIC_ID             no topic has this id
    NOT_LEADER_OR_FOLLOWER       another broker leads the partition: ask for metadata again
    FENCED_LEADER_EPOCH          the client knows an earlier term of this leader than the present one (KIP-320)
    UNKNOWN_LEADER_EPOCH         the client knows a later one: this broker has yet to hear of it
"""

from __future__ import annotations

from clarion.broker.partitions import Partitions
from clarion.cluster import Topic, TopicRegistry
from clarion.model.errors import ErrorCode, KafkaError
from clarion.model.ids import TopicId
from clarion.replication import Partition

ANY_EPOCH = -1


class Resolver:
    def __init__(self, registry: TopicRegistry, partitions: Partitions) -> None:
        self._registry = registry
        self._partitions = partitions

    def topic(self, name: str) -> Topic:
        topic = self._registry.image.topics.get(name)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}")
        return topic

    def topic_by_id(self, topic_id: TopicId) -> Topic:
        topic = self._registry.image.topics_by_id.get(topic_id)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, f"there is no topic with the id {topic_id}")
        return topic

    def check_exists(self, topic: Topic, index: int) -> None:
        """Whoever leads it."""
        if not 0 <= index < len(topic.partitions):
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {topic.name}-{index}")

    def partition(self, topic: Topic, index: int, leader_epoch: int = ANY_EPOCH) -> Partition:
        """One that this broker leads. `leader_epoch`: the term in which the client believes it to be led."""
        partition = self._partitions.find(topic.id, index)
        if partition is None:
            self.check_exists(topic, index)
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{topic.name}-{index} is led by another broker")
        check_leader_epoch(leader_epoch, partition)
        return partition


def check_leader_epoch(asked: int, partition: Partition) -> None:
    """A client with stale metadata is fenced, one that knows a later term than we do has to wait; -1 knows nothing."""
    if asked < 0 or asked == partition.leader_epoch:
        return
    is_fenced = asked < partition.leader_epoch
    raise KafkaError(
        ErrorCode.FENCED_LEADER_EPOCH if is_fenced else ErrorCode.UNKNOWN_LEADER_EPOCH,
        f"{partition.tp} is in epoch {partition.leader_epoch}",
    )
