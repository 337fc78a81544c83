"""What the coordinator knows about topics: the driver hands it a new view whenever they change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple
from uuid import UUID


class TopicInfo(NamedTuple):
    topic_id: UUID
    partition_count: int


class TopicsView:
    """The topics at one moment. Give it a copy: it must not change under the coordinator's feet.

    It keeps what regular expressions come to among these topics (`subscriptions.resolve` fills that in). Whoever knows
    the view before this one says so: then only the names that are new need to be looked at.
    """

    def __init__(self, topics: Mapping[str, TopicInfo], before: TopicsView | None = None) -> None:
        self.topics = topics
        self.names = {info.topic_id: name for name, info in topics.items()}
        self.resolved: dict[str, tuple[str, ...]] = {}  # regular expression → names
        self.resolved_before: Mapping[str, tuple[str, ...]] = before.resolved if before is not None else {}
        known = before.topics if before is not None else {}
        self.new_names = [name for name in topics if name not in known]


NO_TOPICS = TopicsView({})
