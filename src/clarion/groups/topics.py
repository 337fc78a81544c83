"""What the coordinator knows about topics: the driver hands it a new view whenever they change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple
from uuid import UUID


class TopicInfo(NamedTuple):
    topic_id: UUID
    partition_count: int


class TopicsView:
    """The topics at one moment. Give it a copy: it must not change under the coordinator's feet."""

    def __init__(self, topics: Mapping[str, TopicInfo]) -> None:
        self.topics = topics
        self.names = {info.topic_id: name for name, info in topics.items()}


NO_TOPICS = TopicsView({})
