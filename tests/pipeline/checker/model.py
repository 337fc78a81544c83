"""What a topic holds, as the test knows it: every message that was acknowledged, and what may have been lost since."""

import random
from dataclasses import dataclass, field

from confluent_kafka import Message, Producer
from confluent_kafka.admin import AdminClient, NewPartitions

from clarion.pipeline.kafka.client import Client
from clarion.pipeline.kafka.settings import ClientSettings
from tests.pipeline import topics
from tests.waiting import PATIENCE_SECONDS

Place = tuple[str, int, int]  # topic id, partition, offset
Content = tuple[bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...], int]
NOW_MS = 1_790_000_000_000
# Segments end with every batch, so that the cleaner, which looks five times a second, always has something to clean.
COMPACTED = {"cleanup_policy": "compact", "segment_ms": "1", "min_cleanable_dirty_ratio": "0.01"}
BATCH = {"linger.ms": 5, "batch.num.messages": 7}  # small batches, so that ranges begin and end within them


@dataclass
class ModelTopic:
    """A topic that is written, shortened, widened and made again at random; nothing else writes to it."""

    bootstrap: str
    name: str
    chance: random.Random
    may_compact: bool = True
    topic_id: str = ""
    partitions: int = 0
    messages: dict[Place, Content] = field(default_factory=dict)
    read: set[Place] = field(default_factory=set)  # what a finished batch has passed
    may_be_lost: set[Place] = field(default_factory=set)  # deleted before a batch had passed it
    compacted: set[str] = field(default_factory=set)  # ids of topics of which only the last message of a key must stay
    _number: int = 0

    def make(self) -> None:
        self.partitions = self.chance.randint(1, 3)
        is_compacted = self.may_compact and self.chance.random() < 0.4
        topics.create(
            self.bootstrap, self.name, self.partitions, **(COMPACTED if is_compacted else {"retention_ms": "-1"})
        )
        client = Client(ClientSettings((self.bootstrap,)))
        self.topic_id = str(client.topics([self.name])[self.name].topic_id)
        self.compacted |= {self.topic_id} if is_compacted else set()
        client.close()

    def make_again(self) -> None:
        topics.delete(self.bootstrap, self.name)
        self.may_be_lost |= self._here() - self.read
        self.make()

    def widen(self) -> None:
        self.partitions += 1
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        admin.create_partitions([NewPartitions(self.name, self.partitions)])[self.name].result(PATIENCE_SECONDS)

    def shorten(self) -> None:
        """What retention does: the beginning of a partition goes."""
        if self.topic_id in self.compacted:  # where nobody may delete by offset
            return
        partition = self.chance.randrange(self.partitions)
        offsets = [place[2] for place in self._here() if place[1] == partition]
        if not offsets:
            return
        before = self.chance.randint(0, max(offsets) + 1)
        topics.delete_before(self.bootstrap, self.name, before, partition)
        gone = {place for place in self._here() if place[1] == partition and place[2] < before}
        self.may_be_lost |= gone - self.read

    def write(self) -> None:
        producer = Producer({"bootstrap.servers": self.bootstrap, "compression.type": self._codec(), **BATCH})
        for _ in range(self.chance.choice((1, 3, 40, 200))):
            self._write_one(producer)
            producer.poll(0)
        assert producer.flush(PATIENCE_SECONDS) == 0

    def pass_over(self, start: dict, end: dict) -> None:
        """A batch from `start` to `end` is done."""
        for topic_id, partition, offset in self.messages:
            if topic_id == end[self.name]["id"] and offset < end[self.name].get(str(partition), 0):
                self.read.add((topic_id, partition, offset))

    def superseded(self) -> set[Place]:
        """What compaction may have taken, silently: messages with a later one of their key."""
        last: dict[tuple[str, int, bytes | None], int] = {}
        for (topic_id, partition, offset), content in self.messages.items():
            where = (topic_id, partition, content[0])
            last[where] = max(offset, last.get(where, -1))
        return {
            place
            for place, content in self.messages.items()
            if place[0] in self.compacted and place[2] < last[place[0], place[1], content[0]]
        }

    def _write_one(self, producer: Producer) -> None:
        self._number += 1
        chance = self.chance
        key = chance.choice((None, b"", b"key-%d" % chance.randrange(5)))
        if self.topic_id in self.compacted:  # which takes no message without a key
            key = b"key-%d" % chance.randrange(5)
        value = chance.choice((None, b"", b"v" * chance.randrange(200))) if key is not None else b"%d" % self._number
        headers = [("number", b"%d" % self._number)]
        headers += [("more", chance.choice((None, b"", b"x" * 9)))] if chance.random() < 0.3 else []
        time_ms = NOW_MS + chance.randrange(10**6)
        content = (key, value, tuple(headers), time_ms)

        def note(error: object, message: Message) -> None:
            assert error is None, error
            self.messages[self.topic_id, message.partition() or 0, message.offset() or 0] = content

        partition = chance.randrange(self.partitions)
        producer.produce(
            self.name, value, key, partition=partition, headers=headers, timestamp=time_ms, on_delivery=note
        )

    def _codec(self) -> str:
        return self.chance.choice(("none", "gzip", "snappy", "lz4", "zstd"))

    def _here(self) -> set[Place]:
        return {place for place in self.messages if place[0] == self.topic_id}
