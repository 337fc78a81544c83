"""What the cluster agrees on: which topics exist, with which ids, partitions and settings; settings; ids and epochs.

It lies in a coordination store (`coordination`): on one machine SQLite, in simulations one in memory, in the cluster
etcd. What the store says is in memory, as an image that never changes and is replaced as a whole (`image`), so that
reading asks nobody. This room never touches messages.
"""

from clarion.cluster.coordination import CoordinationStore, StoreError
from clarion.cluster.counters import ProducerIds
from clarion.cluster.image import ClusterImage, Topic
from clarion.cluster.registry import TopicRegistry
from clarion.cluster.schema import BrokerRegistration, Endpoint, PartitionState
from clarion.cluster.settings import SettingsRegistry
from clarion.cluster.sqlite_database import StoreDamagedError
from clarion.cluster.sqlite_store import SqliteStore

__all__ = [
    "BrokerRegistration",
    "ClusterImage",
    "CoordinationStore",
    "Endpoint",
    "PartitionState",
    "ProducerIds",
    "SettingsRegistry",
    "SqliteStore",
    "StoreDamagedError",
    "StoreError",
    "Topic",
    "TopicRegistry",
]
