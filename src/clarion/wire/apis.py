"""Every API that Clarion speaks: its key, its versions, from which version on it is flexible, and its neutral messages.

The maxima are Kafka's own, as far as kio's schema goes, from which `wire.tables` are made. Message modules are imported
on first use, so that a broker that starts loads only those of its groups.
"""

from __future__ import annotations

from functools import cached_property
from importlib import import_module
from typing import Any, Final

NEVER_FLEXIBLE: Final = 1 << 15

PRODUCE: Final = 0
FETCH: Final = 1
LIST_OFFSETS: Final = 2
METADATA: Final = 3
OFFSET_COMMIT: Final = 8
OFFSET_FETCH: Final = 9
FIND_COORDINATOR: Final = 10
JOIN_GROUP: Final = 11
HEARTBEAT: Final = 12
LEAVE_GROUP: Final = 13
SYNC_GROUP: Final = 14
DESCRIBE_GROUPS: Final = 15
LIST_GROUPS: Final = 16
API_VERSIONS: Final = 18
CREATE_TOPICS: Final = 19
DELETE_TOPICS: Final = 20
DELETE_RECORDS: Final = 21
INIT_PRODUCER_ID: Final = 22
OFFSET_FOR_LEADER_EPOCH: Final = 23
DESCRIBE_CONFIGS: Final = 32
ALTER_CONFIGS: Final = 33
ALTER_REPLICA_LOG_DIRS: Final = 34
DESCRIBE_LOG_DIRS: Final = 35
CREATE_PARTITIONS: Final = 37
DELETE_GROUPS: Final = 42
ELECT_LEADERS: Final = 43
INCREMENTAL_ALTER_CONFIGS: Final = 44
ALTER_PARTITION_REASSIGNMENTS: Final = 45
LIST_PARTITION_REASSIGNMENTS: Final = 46
OFFSET_DELETE: Final = 47
DESCRIBE_CLIENT_QUOTAS: Final = 48
DESCRIBE_QUORUM: Final = 55
UPDATE_FEATURES: Final = 57
DESCRIBE_CLUSTER: Final = 60
DESCRIBE_PRODUCERS: Final = 61
UNREGISTER_BROKER: Final = 64
CONSUMER_GROUP_HEARTBEAT: Final = 68
CONSUMER_GROUP_DESCRIBE: Final = 69
LIST_CONFIG_RESOURCES: Final = 74
DESCRIBE_TOPIC_PARTITIONS: Final = 75
SHARE_GROUP_HEARTBEAT: Final = 76
SHARE_GROUP_DESCRIBE: Final = 77
SHARE_FETCH: Final = 78
SHARE_ACKNOWLEDGE: Final = 79
INITIALIZE_SHARE_GROUP_STATE: Final = 83
READ_SHARE_GROUP_STATE: Final = 84
WRITE_SHARE_GROUP_STATE: Final = 85
DELETE_SHARE_GROUP_STATE: Final = 86
READ_SHARE_GROUP_STATE_SUMMARY: Final = 87
DESCRIBE_SHARE_GROUP_OFFSETS: Final = 90
ALTER_SHARE_GROUP_OFFSETS: Final = 91
DELETE_SHARE_GROUP_OFFSETS: Final = 92


class Api:
    """One row of the table. `min_version` is what we answer, `advertised_min` what ApiVersions says."""

    def __init__(
        self,
        key: int,
        name: str,
        min_version: int,
        max_version: int,
        first_flexible: int,
        advertised_min: int | None = None,
        messages: str = "",
    ) -> None:
        self.key = key
        self.name = name
        self.min_version = min_version
        self.max_version = max_version
        self.first_flexible = first_flexible
        self.messages = messages  # the module of `wire.messages` that has them
        self.advertised_min = min_version if advertised_min is None else advertised_min

    def speaks(self, version: int) -> bool:
        return self.min_version <= version <= self.max_version

    def is_flexible(self, version: int) -> bool:
        return version >= self.first_flexible

    @property
    def snake_name(self) -> str:
        """`ListOffsets` → `list_offsets`: our module is called like this, and kio's folder."""
        return "".join(f"_{c.lower()}" if c.isupper() else c for c in self.name).lstrip("_")

    @cached_property
    def request(self) -> type[Any]:
        """The neutral request class. Produce and Fetch have none: their codecs are hand-written."""
        return self._message("Request")

    @cached_property
    def response(self) -> type[Any]:
        return self._message("Response")

    def _message(self, suffix: str) -> type[Any]:
        module = import_module(f"clarion.wire.messages.{self.messages}")
        message: type[Any] = getattr(module, self.name + suffix)
        return message

    def __repr__(self) -> str:
        return f"<Api {self.key} {self.name} {self.min_version}-{self.max_version}>"


_TABLE: Final = (
    # librdkafka drops compression and idempotence unless Produce is advertised from 0; below 3 is refused.
    Api(PRODUCE, "Produce", 3, 13, 9, advertised_min=0),
    Api(FETCH, "Fetch", 4, 18, 12),
    Api(LIST_OFFSETS, "ListOffsets", 1, 11, 6, messages="logs"),
    Api(METADATA, "Metadata", 0, 13, 9, messages="metadata"),
    Api(OFFSET_COMMIT, "OffsetCommit", 2, 10, 8, messages="offsets"),
    Api(OFFSET_FETCH, "OffsetFetch", 1, 10, 6, messages="offsets"),
    Api(FIND_COORDINATOR, "FindCoordinator", 0, 6, 3, messages="metadata"),
    Api(JOIN_GROUP, "JoinGroup", 0, 9, 6, messages="groups"),
    Api(HEARTBEAT, "Heartbeat", 0, 4, 4, messages="groups"),
    Api(LEAVE_GROUP, "LeaveGroup", 0, 5, 4, messages="groups"),
    Api(SYNC_GROUP, "SyncGroup", 0, 5, 4, messages="groups"),
    Api(DESCRIBE_GROUPS, "DescribeGroups", 0, 6, 5, messages="groups"),
    Api(LIST_GROUPS, "ListGroups", 0, 5, 3, messages="groups"),
    Api(API_VERSIONS, "ApiVersions", 0, 4, 3, messages="metadata"),
    Api(CREATE_TOPICS, "CreateTopics", 2, 7, 5, messages="topics"),
    Api(DELETE_TOPICS, "DeleteTopics", 1, 6, 4, messages="topics"),
    Api(DELETE_RECORDS, "DeleteRecords", 0, 2, 2, messages="topics"),
    Api(INIT_PRODUCER_ID, "InitProducerId", 0, 5, 2, messages="logs"),
    Api(OFFSET_FOR_LEADER_EPOCH, "OffsetForLeaderEpoch", 2, 4, 4, messages="logs"),
    Api(DESCRIBE_CONFIGS, "DescribeConfigs", 1, 4, 4, messages="configs"),
    Api(ALTER_CONFIGS, "AlterConfigs", 0, 2, 2, messages="configs"),
    Api(ALTER_REPLICA_LOG_DIRS, "AlterReplicaLogDirs", 1, 2, 2, messages="replicas"),
    Api(DESCRIBE_LOG_DIRS, "DescribeLogDirs", 1, 4, 2, messages="replicas"),
    Api(CREATE_PARTITIONS, "CreatePartitions", 0, 3, 2, messages="topics"),
    Api(DELETE_GROUPS, "DeleteGroups", 0, 2, 2, messages="groups"),
    Api(ELECT_LEADERS, "ElectLeaders", 0, 2, 2, messages="replicas"),
    Api(INCREMENTAL_ALTER_CONFIGS, "IncrementalAlterConfigs", 0, 1, 1, messages="configs"),
    Api(ALTER_PARTITION_REASSIGNMENTS, "AlterPartitionReassignments", 0, 1, 0, messages="replicas"),
    Api(LIST_PARTITION_REASSIGNMENTS, "ListPartitionReassignments", 0, 0, 0, messages="replicas"),
    Api(OFFSET_DELETE, "OffsetDelete", 0, 0, NEVER_FLEXIBLE, messages="offsets"),
    Api(DESCRIBE_CLIENT_QUOTAS, "DescribeClientQuotas", 0, 1, 1, messages="controller"),
    Api(DESCRIBE_QUORUM, "DescribeQuorum", 0, 2, 0, messages="controller"),
    Api(UPDATE_FEATURES, "UpdateFeatures", 0, 2, 0, messages="controller"),
    Api(DESCRIBE_CLUSTER, "DescribeCluster", 0, 2, 0, messages="metadata"),
    Api(DESCRIBE_PRODUCERS, "DescribeProducers", 0, 0, 0, messages="logs"),
    Api(UNREGISTER_BROKER, "UnregisterBroker", 0, 0, 0, messages="controller"),
    Api(CONSUMER_GROUP_HEARTBEAT, "ConsumerGroupHeartbeat", 0, 1, 0, messages="groups"),
    Api(CONSUMER_GROUP_DESCRIBE, "ConsumerGroupDescribe", 0, 1, 0, messages="groups"),
    Api(LIST_CONFIG_RESOURCES, "ListConfigResources", 0, 1, 0, messages="configs"),
    Api(DESCRIBE_TOPIC_PARTITIONS, "DescribeTopicPartitions", 0, 0, 0, messages="metadata"),
    Api(SHARE_GROUP_HEARTBEAT, "ShareGroupHeartbeat", 1, 1, 0, messages="share_groups"),
    Api(SHARE_GROUP_DESCRIBE, "ShareGroupDescribe", 1, 1, 0, messages="share_groups"),
    Api(SHARE_FETCH, "ShareFetch", 1, 2, 0, messages="share_groups"),
    Api(SHARE_ACKNOWLEDGE, "ShareAcknowledge", 1, 2, 0, messages="share_groups"),
    Api(INITIALIZE_SHARE_GROUP_STATE, "InitializeShareGroupState", 0, 0, 0, messages="share_state"),
    Api(READ_SHARE_GROUP_STATE, "ReadShareGroupState", 0, 0, 0, messages="share_state"),
    Api(WRITE_SHARE_GROUP_STATE, "WriteShareGroupState", 0, 1, 0, messages="share_state"),
    Api(DELETE_SHARE_GROUP_STATE, "DeleteShareGroupState", 0, 0, 0, messages="share_state"),
    Api(READ_SHARE_GROUP_STATE_SUMMARY, "ReadShareGroupStateSummary", 0, 1, 0, messages="share_state"),
    Api(DESCRIBE_SHARE_GROUP_OFFSETS, "DescribeShareGroupOffsets", 0, 1, 0, messages="share_groups"),
    Api(ALTER_SHARE_GROUP_OFFSETS, "AlterShareGroupOffsets", 0, 0, 0, messages="share_groups"),
    Api(DELETE_SHARE_GROUP_OFFSETS, "DeleteShareGroupOffsets", 0, 0, 0, messages="share_groups"),
)

APIS: Final[dict[int, Api]] = {api.key: api for api in _TABLE}
ADVERTISED: Final[tuple[tuple[int, int, int], ...]] = tuple(
    (api.key, api.advertised_min, api.max_version) for api in _TABLE
)
"""(key, min, max) as ApiVersions tells it."""

SHARE_APIS: Final = frozenset({
    *(SHARE_GROUP_HEARTBEAT, SHARE_GROUP_DESCRIBE, SHARE_FETCH, SHARE_ACKNOWLEDGE),
    *(DESCRIBE_SHARE_GROUP_OFFSETS, ALTER_SHARE_GROUP_OFFSETS, DELETE_SHARE_GROUP_OFFSETS),
})  # fmt: skip
"""Of share groups (KIP-932), for clients."""

SHARE_STATE_APIS: Final = frozenset({
    *(INITIALIZE_SHARE_GROUP_STATE, READ_SHARE_GROUP_STATE, WRITE_SHARE_GROUP_STATE),
    *(DELETE_SHARE_GROUP_STATE, READ_SHARE_GROUP_STATE_SUMMARY),
})  # fmt: skip
"""Between brokers: where share-partitions keep what they know."""

FIRST_FLEXIBLE: Final[dict[int, int]] = {api.key: api.first_flexible for api in _TABLE}
