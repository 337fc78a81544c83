"""What lies in the coordination store under which key, and in which form.

    cluster-id                         text
    broker-epoch                       number: how often a broker has started, and above every leader epoch so far
    brokers/<id>                       where a broker can be reached, its rack; in a cluster bound to its lease
    lives/<id>                         that broker's last life: its broker epoch, its data directory
    controller                         the id of the broker that decides for all, bound to its lease
    topics/<name>                      id, number of partitions, settings, replication factor if somebody asked for one
    partitions/<topic id>/<index>      leader, its epoch, replicas, those in sync
    deleting/<topic id>                the name of a topic that is gone, and of which files may be left
    removed/<topic id>/<broker id>     of such a topic this broker has no files any more
    topic-changes                      changes whenever a topic is made: of two requests only one can be the next
    next-producer-id                   number
    events/<number>                    what the controller decided, and why
    settings/<kind>/<name>             settings of brokers, groups and the like
    feature-level                      number: what everybody who takes part has to understand (`features`)

A topic exists when its `topics/` key does. What it needs more transactions for than one (a thousand partitions) is
written before that key and removed after it: a partition whose topic does not count it is the half of something, which
nobody sees and the next start removes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple
from uuid import UUID

from clarion.cluster.coordination import ABSENT, Revision
from clarion.model.errors import ErrorCode, KafkaError
from clarion.model.ids import TopicId

CLUSTER_ID: Final = "cluster-id"
BROKERS: Final = "brokers/"
TOPICS: Final = "topics/"
PARTITIONS: Final = "partitions/"
DELETING: Final = "deleting/"
REMOVED: Final = "removed/"
LIVES: Final = "lives/"
CONTROLLER: Final = "controller"
TOPIC_CHANGES: Final = "topic-changes"
LEVEL: Final = "feature-level"

NO_LEADER: Final = -1
NO_EPOCH: Final = -1
FEATURE_LEVEL: Final = 1  # of what this version writes into the store; others may run beside it while one upgrades
FIRST_LEVEL: Final = 1
_TOPIC_BYTES_MAX: Final = 64 * 1024  # of a topic with its settings: far more than all that Kafka has


class Endpoint(NamedTuple):
    host: str
    port: int


class BrokerRegistration(NamedTuple):
    id: int
    epoch: int  # of this life of the broker: it grows with every start
    endpoints: tuple[Endpoint, ...]  # one per listener, in the order of the listeners, which all brokers share
    rack: str | None = None
    clean_since: int = 0  # the first life, by its epoch, since which every stop was clean: nothing is lost from then on
    is_leaving: bool = False  # it is about to stop, or being drained: it should lead nothing
    directory: str = ""  # the id of its data directory: another one under the same broker id is a stranger
    secret: str = ""  # of this life: only who can read the store knows it, so only brokers do
    features: int = 0  # its FEATURE_LEVEL
    held_since: int = NO_EPOCH  # the first life with this data directory, if another, or a later one, was its before
    revision: Revision = ABSENT  # of this registration in the store

    def endpoint(self, listener: int) -> Endpoint:
        """Where clients of this listener reach it."""
        return self.endpoints[min(listener, len(self.endpoints) - 1)]


class Life(NamedTuple):
    """The last life of a broker, also after its end."""

    epoch: int = NO_EPOCH
    directory: str = ""  # older versions did not note it
    held_since: int = NO_EPOCH
    is_in_directory: bool = False  # the data directory knows of it too; those of older versions know of no lives


class PartitionState(NamedTuple):
    """Who leads a partition, and since when."""

    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]  # brokers, the preferred leader first
    in_sync: tuple[int, ...]
    partition_epoch: int = 0  # grows with every change of this state
    revision: Revision = ABSENT  # of that change in the store
    lives: tuple[int, ...] = ()  # the broker epoch in which each replica was last known to hold everything; by replica
    eligible: tuple[int, ...] = ()  # not in sync, but as good as: they left when too few were to acknowledge anything
    adding: tuple[int, ...] = ()  # replicas that are being filled, to take the place of
    removing: tuple[int, ...] = ()  # these
    min_in_sync: int = 1  # what `min.insync.replicas` is if nobody has set it: 2 since a third replica was in sync

    def life_of(self, replica: int) -> int:
        """-1: it was never known to hold everything."""
        lives = dict(zip(self.replicas, self.lives, strict=False))
        return lives.get(replica, NO_EPOCH)


# Older versions wrote nothing of single partitions: there was one broker, which led all.
UNSAID: Final = PartitionState(NO_LEADER, NO_EPOCH, (), (), -1)


class TopicEntry(NamedTuple):
    """A topic as its key says it."""

    id: TopicId
    partition_count: int
    overrides: Mapping[str, str]
    replication_factor: int | None  # None: nobody asked for one, so it is whatever the default becomes


def topic_key(name: str) -> str:
    return TOPICS + name


def partition_key(topic_id: TopicId, index: int) -> str:
    return f"{PARTITIONS}{topic_id.hex}/{index}"


def deleting_key(topic_id: TopicId) -> str:
    return DELETING + str(topic_id)


def broker_key(broker_id: int) -> str:
    return f"{BROKERS}{broker_id}"


def removed_key(topic_id: TopicId, broker_id: int) -> str:
    return f"{REMOVED}{topic_id.hex}/{broker_id}"


def life_key(broker_id: int) -> str:
    return f"{LIVES}{broker_id}"


def split_removed_key(key: str) -> tuple[TopicId, int]:
    topic_id, _, broker_id = key.removeprefix(REMOVED).partition("/")
    return UUID(hex=topic_id), int(broker_id)


def split_partition_key(key: str) -> tuple[TopicId, int]:
    topic_id, _, index = key.removeprefix(PARTITIONS).partition("/")
    return UUID(hex=topic_id), int(index)


def write_topic(topic: TopicEntry) -> bytes:
    content: dict[str, Any] = {
        "id": str(topic.id),
        "partitions": topic.partition_count,
        "settings": dict(topic.overrides),
    }
    if topic.replication_factor is not None:
        content["replicationFactor"] = topic.replication_factor
    value = _write(content)
    if len(value) > _TOPIC_BYTES_MAX:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG, f"{len(value)} bytes of settings; a topic has at most {_TOPIC_BYTES_MAX}"
        )
    return value


def read_topic(value: bytes) -> TopicEntry:
    said = json.loads(value)
    factor = said.get("replicationFactor")
    return TopicEntry(
        UUID(said["id"]), int(said["partitions"]), dict(said["settings"]), None if factor is None else int(factor)
    )


def write_partition(state: PartitionState) -> bytes:
    content: dict[str, Any] = {
        "leader": state.leader,
        "leaderEpoch": state.leader_epoch,
        "replicas": state.replicas,
        "inSync": state.in_sync,
        "partitionEpoch": state.partition_epoch,
    }
    if state.lives:
        content["lives"] = state.lives
    some = {"eligible": state.eligible, "adding": state.adding, "removing": state.removing}
    content |= {name: replicas for name, replicas in some.items() if replicas}
    if state.min_in_sync != 1:
        content["minInSync"] = state.min_in_sync
    return _write(content)


def read_partition(value: bytes, revision: Revision) -> PartitionState:
    said = json.loads(value)
    replicas, in_sync = tuple(said["replicas"]), tuple(said["inSync"])
    return PartitionState(
        int(said["leader"]),
        int(said["leaderEpoch"]),
        replicas,
        replicas if in_sync == replicas else in_sync,  # mostly the same: ten thousand times one object less
        int(said["partitionEpoch"]),
        revision,
        tuple(said.get("lives", ())),
        tuple(said.get("eligible", ())),
        tuple(said.get("adding", ())),
        tuple(said.get("removing", ())),
        int(said.get("minInSync", 1)),
    )


def write_broker(broker: BrokerRegistration) -> bytes:
    content: dict[str, Any] = {"epoch": broker.epoch, "endpoints": broker.endpoints, "rack": broker.rack}
    if broker.clean_since:
        content["cleanSince"] = broker.clean_since
    if broker.is_leaving:
        content["isLeaving"] = True
    if broker.directory:
        content |= {"directory": broker.directory, "secret": broker.secret, "features": broker.features}
    if broker.held_since != NO_EPOCH:
        content["heldSince"] = broker.held_since
    return _write(content)


def write_life(life: Life) -> bytes:
    content = {"epoch": life.epoch, "directory": life.directory, "heldSince": life.held_since}
    return _write(content | ({"isInDirectory": True} if life.is_in_directory else {}))


def read_life(value: bytes) -> Life:
    said = json.loads(value)
    if isinstance(said, int):
        return Life(said)
    return Life(said["epoch"], said["directory"], said["heldSince"], said.get("isInDirectory", False))


def read_broker(broker_id: int, value: bytes, revision: Revision = ABSENT) -> BrokerRegistration:
    said = json.loads(value)
    endpoints = tuple(Endpoint(str(host), int(port)) for host, port in said["endpoints"])
    return BrokerRegistration(
        broker_id,
        int(said["epoch"]),
        endpoints,
        said["rack"],
        int(said.get("cleanSince", 0)),
        bool(said.get("isLeaving", False)),
        said.get("directory", ""),
        said.get("secret", ""),
        int(said.get("features", 0)),
        int(said.get("heldSince", NO_EPOCH)),
        revision,
    )


def _write(content: dict[str, Any]) -> bytes:
    return json.dumps(content, separators=(",", ":")).encode()
