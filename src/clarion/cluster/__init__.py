"""What the cluster agrees on: which topics exist, with which ids, partitions and settings; settings; ids and epochs.

It lies in a coordination store (`coordination`): on one machine SQLite, in simulations one in memory, in the cluster
etcd. The registries hold what the store says in memory, so that reading asks nobody. This room never touches messages.
"""

from clarion.cluster.coordination import CoordinationStore, StoreError
from clarion.cluster.producer_ids import ProducerIds
from clarion.cluster.registry import Topic, TopicRegistry
from clarion.cluster.settings import SettingsRegistry
from clarion.cluster.sqlite_database import StoreDamagedError
from clarion.cluster.sqlite_store import SqliteStore

__all__ = [
    "CoordinationStore",
    "ProducerIds",
    "SettingsRegistry",
    "SqliteStore",
    "StoreDamagedError",
    "StoreError",
    "Topic",
    "TopicRegistry",
]
