"""One partition on one broker: leadership and its epoch, the watermark, producer state, group commit.

Words: a message is *appended* when it is in the log, and *committed* when the high watermark has passed it; readers see
only what is committed. What committing takes (a flush, later also the followers' flushes) is decided here and nowhere
else. This room never sees a socket or a request.
"""

from clarion.replication.flush_threads import FlushThreads, LoopThreads, Threads
from clarion.replication.group_commit import GroupCommit
from clarion.replication.membership import Assignment, Membership, Term
from clarion.replication.partition import Appended, Partition, Watcher
from clarion.replication.preparation import Preparation
from clarion.replication.producers import ProducerLimits, ProducerStates

__all__ = [
    "Appended",
    "Assignment",
    "FlushThreads",
    "GroupCommit",
    "LoopThreads",
    "Membership",
    "Partition",
    "Preparation",
    "ProducerLimits",
    "ProducerStates",
    "Term",
    "Threads",
    "Watcher",
]
