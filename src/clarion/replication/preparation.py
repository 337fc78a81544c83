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
from typing import Final

from clarion.model.errors import ErrorCode, KafkaError
from clarion.model.topic_settings import TopicSettings
from clarion.wire.batch import COMPRESSION_MASK, BatchHeader, check_produced_batch
from clarion.wire.compression import Codec
from clarion.wire.limits import WorkBudget
from clarion.wire.records import assemble_batch, check_deep, unpack_records


@dataclass(frozen=True, slots=True)
class Preparation:
    """Called with a batch and what the request may still cost; KafkaError says why the batch is refused."""

    topic: str
    bytes_max: int
    is_deep: bool  # whether every record is validated
    keys_required: bool
    codec: Codec | None  # that batches are stored in; None leaves it to the producer
    level: int | None

    def __call__(self, batch: memoryview, budget: WorkBudget) -> memoryview:
        check_size(batch, self.topic, self.bytes_max)
        header = check_produced_batch(batch)
        if self.is_deep:
            check_deep(batch, header, keys_required=self.keys_required, budget=budget)
        if self.codec is None or header.compression == self.codec:
            return batch
        return self._compressed_anew(batch, header, self.codec, budget)

    def _compressed_anew(self, batch: memoryview, header: BatchHeader, codec: Codec, budget: WorkBudget) -> memoryview:
        """The same batch in the topic's codec; producer, sequence and times stay. `Partition` judges its new size."""
        data = unpack_records(batch, header, budget)
        if len(data) > COMPRESSED_ANEW_BYTES_MAX:
            # This error makes Kafka's own client cut the batch in two and send it again.
            raise KafkaError(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"a batch of {len(data)} bytes when unpacked; where the broker compresses anew "
                f"(compression.type of {self.topic}), at most {COMPRESSED_ANEW_BYTES_MAX} are taken",
            )
        budget.spend_bytes(len(data))  # to pack them takes longer than to unpack them
        attributes = header.attributes & ~COMPRESSION_MASK | codec
        return memoryview(assemble_batch(header._replace(attributes=attributes), data, self.level))


COMPRESSED_ANEW_BYTES_MAX: Final = 16 << 20  # a few seconds of one thread at the slowest level, for whom others wait


def preparation_for(topic: str, settings: TopicSettings) -> Preparation | None:
    """None where a batch is appended as it comes."""
    codec = _CODECS.get(settings.compression_type)
    if not settings.is_validated_deeply and codec is None:
        return None
    levels = {
        Codec.GZIP: settings.compression_gzip_level,
        Codec.LZ4: settings.compression_lz4_level,
        Codec.ZSTD: settings.compression_zstd_level,
    }
    return Preparation(
        topic=topic,
        bytes_max=settings.max_message_bytes,
        is_deep=settings.is_validated_deeply,
        keys_required=settings.is_compacted,
        codec=codec,
        level=None if codec is None else levels.get(codec),
    )


_CODECS: Final = {
    "uncompressed": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}


def check_size(batch: memoryview, topic: str, bytes_max: int) -> None:
    if len(batch) > bytes_max:
        raise KafkaError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"a batch of {len(batch)} bytes; {topic} takes at most {bytes_max} (max.message.bytes)",
        )
