"""What a produced batch goes through before it is appended, where its topic asks for more than an honest header.

A preparation is a frozen value made of a topic's settings. It knows nothing of the log, the producers or the clock, so
that it can run in a thread; what it returns is then appended on the event loop with `Partition.append_prepared`. The
batch that it returns may be another one than it was given (compressed anew, say): offsets, epoch and append time are
stamped later, everything else must be final, length and CRC included.

    small, and nothing is waiting            everything else
    prepare and append in one turn           copied, prepared in a thread, appended in order of arrival
                                             (`broker/preparing.py`)
"""

from __future__ import annotations

from dataclasses import dataclass

from clarion.model.errors import ErrorCode, KafkaError
from clarion.model.topic_settings import TopicSettings
from clarion.wire.batch import check_produced_batch
from clarion.wire.limits import WorkBudget
from clarion.wire.records import check_deep


@dataclass(frozen=True, slots=True)
class Preparation:
    """Called with a batch and what the request may still cost; KafkaError says why the batch is refused."""

    topic: str
    bytes_max: int
    keys_required: bool

    def __call__(self, batch: memoryview, budget: WorkBudget) -> memoryview:
        check_size(batch, self.topic, self.bytes_max)
        check_deep(batch, check_produced_batch(batch), keys_required=self.keys_required, budget=budget)
        return batch


def preparation_for(topic: str, settings: TopicSettings) -> Preparation | None:
    """None where a batch is appended as it comes."""
    if not settings.is_validated_deeply:
        return None
    return Preparation(topic, settings.max_message_bytes, settings.is_compacted)


def check_size(batch: memoryview, topic: str, bytes_max: int) -> None:
    if len(batch) > bytes_max:
        raise KafkaError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"a batch of {len(batch)} bytes; {topic} takes at most {bytes_max} (max.message.bytes)",
        )
