"""Where a subscription begins is decided when it is made, not when its first reader comes: what is written in between
is for it, however long nobody reads.

A `start` of "earliest" needs no decision. For any other the leaders of its partitions are asked, before the
subscription exists; where one of them does not answer there is none. Kafka's own groups decide as Kafka does, when
they first read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from clarion.broker.authorizer import Principal
from clarion.broker.group_facts import UNKNOWN, GroupLooks
from clarion.broker.kafka_calls import KafkaCalls
from clarion.broker.subscribed_topics import reads, topics_read_by
from clarion.model.beginnings import Beginnings
from clarion.model.errors import ErrorCode, KafkaError
from clarion.model.group_settings import reset_duration_ms
from clarion.model.ids import TopicId, TopicPartition
from clarion.model.seeking import EARLIEST, LATEST
from clarion.model.subscription import Subscription
from clarion.wire.messages.offsets import OffsetFetchResponsePartition, OffsetFetchResponseTopic

if TYPE_CHECKING:
    from clarion.broker.broker import Broker


Topics = tuple[OffsetFetchResponseTopic, ...]
_LEADER_SECONDS: Final = 3.0  # its reader's heartbeats wait behind the question: less than any session's timeout


class SubscriptionStarts:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._calls = KafkaCalls(broker)
        self._looks = GroupLooks(broker, self._calls)

    def close(self) -> None:
        self._calls.close()

    async def of_new(self, subscription: Subscription, who: Principal) -> Subscription:
        topics = await topics_read_by(self._broker, subscription)
        return replace(subscription, begins=await self._decided(subscription, topics, who))

    async def of_changed(self, before: Subscription, after: Subscription, who: Principal) -> Subscription:
        """Another `start` is decided anew; topics that it did not read before begin now, all others stay."""
        if after.start != before.start:
            return await self.of_new(after, who)
        if before.begins is None:
            return after
        present = set(await topics_read_by(self._broker, before))
        added = [name for name in await topics_read_by(self._broker, after) if name not in present]
        decided = await self._decided(after, added, who)
        return after if decided is None else replace(after, begins=before.begins.moved(decided.offsets))

    async def begun(self, subscription: Subscription, topics: Topics, who: Principal) -> Topics:
        """Of a stream: where its readers are that have not committed anything yet. A partition that came after it was
        made is read from its start, whatever its reader would do."""
        begins = subscription.begins
        if begins is None:
            return topics
        read = {
            one.name: known
            for one in topics
            if (known := self._broker.image.topic(one.name)) is not None and reads(subscription, one.name)
        }
        places = [
            TopicPartition(one.name, part.partition_index)
            for one in topics
            if one.name in read
            for part in one.partitions
            if _has_no_place(part) and 0 <= part.partition_index < read[one.name].partition_count
        ]
        decided = {place: begins.of(read[place.topic].id, place.partition) for place in places}
        starts = await self._starts_of([place for place, offset in decided.items() if offset is None], who)
        at = {place: starts[place] if offset is None else offset for place, offset in decided.items()}

        def begun(name: str, part: OffsetFetchResponsePartition) -> OffsetFetchResponsePartition:
            offset = at.get(TopicPartition(name, part.partition_index))
            return part if offset is None else replace(part, committed_offset=offset)

        return tuple(replace(one, partitions=tuple(begun(one.name, part) for part in one.partitions)) for one in topics)

    async def _starts_of(self, places: Collection[TopicPartition], who: Principal) -> dict[TopicPartition, int]:
        """A reader asks again, as its client does by itself, while a leader is away."""
        try:
            return await self._looks.offsets_of_all(places, EARLIEST, who, seconds=_LEADER_SECONDS)
        except KafkaError as error:
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, str(error)) from error

    async def _decided(self, subscription: Subscription, topics: Iterable[str], who: Principal) -> Beginnings | None:
        if subscription.start == "earliest":
            return None
        places = self._looks.partitions_of(topics)
        if subscription.start == "latest":
            return Beginnings(self.by_topic_id(await self._looks.offsets_of_all(places, LATEST, who)))
        since_ms = self._broker.clock_trust.early_ms() - reset_duration_ms(subscription.start)
        return Beginnings(self.by_topic_id(await self._looks.first_since(places, since_ms, who)))

    def by_topic_id(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicId, dict[int, int]]:
        found: dict[TopicId, dict[int, int]] = {}
        for place, offset in offsets.items():
            found.setdefault(self._broker.image.topics[place.topic].id, {})[place.partition] = offset
        return found


def _has_no_place(part: OffsetFetchResponsePartition) -> bool:
    return part.committed_offset == UNKNOWN and not part.error_code
