"""The cluster manager's registry: which topics exist, with which ids, partitions and settings.

What it knows it keeps in a coordination store: here the embedded one, a small journal in the data directory; the
cluster brings etcd under the same registry. This room never touches messages.
"""

from clarion.cluster.registry import Topic, TopicRegistry
from clarion.cluster.store import EmbeddedStore

__all__ = ["EmbeddedStore", "Topic", "TopicRegistry"]
