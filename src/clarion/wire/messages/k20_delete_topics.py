"""DeleteTopics v1-6.

v4 flexible · v5 error message · v6 topics by name or id (`topics` instead of `topic_names`).
"""

from __future__ import annotations

from uuid import UUID

from clarion.model.ids import NO_TOPIC_ID
from clarion.wire.messages import message


@message
class DeleteTopicState:
    name: str | None = None
    topic_id: UUID


@message
class DeleteTopicsRequest:
    topics: tuple[DeleteTopicState, ...] = ()  # v6+
    timeout: int
    topic_names: tuple[str, ...] = ()  # v1-5


@message
class DeletableTopicResult:
    name: str | None = None
    topic_id: UUID = NO_TOPIC_ID  # v6+
    error_code: int = 0
    error_message: str | None = None  # v5+


@message
class DeleteTopicsResponse:
    throttle_time: int = 0
    responses: tuple[DeletableTopicResult, ...]
