"""What a stream leaves under its group's name at the broker: how far it has read, so that lag can be seen.

Progress is never read back: the checkpoint is the truth, and whoever deletes it starts where the options say. One thing
is: a stream that begins at `latest` pins that place here until its first batch is done, because Spark asks for it again
when the query is restarted before, and by then the latest offset is another one.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final
from uuid import UUID

from clarion.model.errors import KafkaError
from clarion.model.ids import TopicPartition
from clarion.pipeline.kafka.client import Client
from clarion.pipeline.kafka.errors import ConnectionLostError
from clarion.pipeline.kafka.offsets import commit_offsets, fetch_committed
from clarion.pipeline.source.offsets import StreamOffsets

log = logging.getLogger("clarion.pipeline")

_PINNED: Final = "clarion:start:"
# Progress that cannot be stored now is stored with the next poll; the stream does not wait for it.
_COMMIT_PATIENCE_MS: Final = 1_000


class GroupProgress:
    def __init__(self, client: Client, group: str, beginning: str = "") -> None:
        """`beginning`: what the options say of where to begin. A place that was pinned for other words is not taken."""
        self._client = client
        self._group = group
        self._beginning = beginning
        self._stored: StreamOffsets | None = None
        self._pinned: StreamOffsets | None = None
        self._has_warned = False

    def pinned(self, places: StreamOffsets) -> dict[TopicPartition, int]:
        """The offsets that an earlier run of the same words pinned for these partitions of these very topics."""
        stored = fetch_committed(self._client, self._group, places.offsets)
        return {tp: one.offset for tp, one in stored.items() if one.metadata == self._mark(places.ids[tp.topic])}

    def pin(self, start: StreamOffsets) -> None:
        for topic, topic_id in start.ids.items():
            offsets = {tp: offset for tp, offset in start.offsets.items() if tp.topic == topic}
            if offsets:
                self._commit(offsets, self._mark(topic_id), self._client.settings.api_timeout_ms)
        self._pinned = self._stored = start

    def store(self, read: StreamOffsets) -> None:
        """Everything before these offsets is done. A failure is told once and tried again with the next progress."""
        if read == self._stored or read == self._pinned or not read.offsets:
            return
        try:
            self._commit(read.offsets, "", _COMMIT_PATIENCE_MS)
        except (KafkaError, ConnectionLostError) as error:
            if not self._has_warned:
                log.warning(
                    "the progress of group %s is not stored, its lag will look too large: %s", self._group, error
                )
            self._has_warned = True
            return
        self._stored = read
        self._has_warned = False

    def _commit(self, offsets: Mapping[TopicPartition, int], metadata: str, patience_ms: int) -> None:
        commit_offsets(self._client, self._group, offsets, metadata=metadata, timeout_ms=patience_ms)

    def _mark(self, topic_id: UUID) -> str:
        return f"{_PINNED}{self._beginning}{topic_id}"
