"""What a log needs to know of its topic's settings."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Final

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
        values = {field.name: getattr(settings, field.name) for field in fields(cls)}
        return cls(**{**values, "segment_bytes": _segment_bytes(settings)})


_SEGMENT_PARTS: Final = 4
_SEGMENT_BYTES_MIN: Final = 1 << 20  # below this, files would be many and their names dearer than their content


def _segment_bytes(settings: TopicSettings) -> int:
    """At most a quarter of `retention.bytes`: what goes by size goes in whole files, and on a disk without room there
    is little to be written anew for it.
    """
    if not settings.is_deleted or settings.retention_bytes < 0:
        return settings.segment_bytes
    return min(settings.segment_bytes, max(settings.retention_bytes // _SEGMENT_PARTS, _SEGMENT_BYTES_MIN))
