"""What a log needs to know of its topic's settings."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clarion.model.topic_settings import TopicSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """The defaults are Kafka's."""

    segment_bytes: int = 1 << 30
    segment_ms: int = 7 * 24 * 3_600_000
    segment_jitter_ms: int = 0
    segment_index_bytes: int = 10 << 20
    index_interval_bytes: int = 4096
    file_delete_delay_ms: int = 60_000

    @classmethod
    def of(cls, settings: TopicSettings) -> LogConfig:
        return cls(**{field.name: getattr(settings, field.name) for field in fields(cls)})
