"""What the driver of a stream knows of its topics from moment to moment: which there are, and how far they reach.

Asked for the latest offsets, it waits for news (`kafka.watch`) and looks now and then for new topics and partitions.
What has gone missing since the stream stood at `start` (a topic deleted, or deleted and made again; offsets that
retention has overtaken; a log that lost its end) is told to `on_loss`, which raises or lets the stream go on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final, TypeVar
from uuid import UUID

from clarion.model.errors import ErrorCode, KafkaError
from clarion.model.ids import TopicPartition
from clarion.pipeline.kafka.client import Client
from clarion.pipeline.kafka.errors import may_pass, refusal
from clarion.pipeline.kafka.offsets import EARLIEST, LATEST, ends_of_epochs, is_missing, list_offsets
from clarion.pipeline.kafka.range_reader import OnLoss
from clarion.pipeline.kafka.watch import News, Watch, WatchedPosition
from clarion.pipeline.source.offsets import (
    MISSING_PATIENCE_S,
    FoundTopic,
    Missing,
    Standing,
    StreamOffsets,
    forward,
    stand,
)
from clarion.pipeline.source.options import SourceSettings
from clarion.pipeline.source.positions import find_topics, partitions_of

T = TypeVar("T")

# How long a broker keeps a question to which there is no news: an idle stream asks twice a second.
HOLD_MS: Final = 500
_TOPIC_IS_GONE: Final = (ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
# How much a new estimate of a message's size counts against what was seen before.
_NEW_WEIGHT: Final = 0.3


class LiveTopics:
    def __init__(self, client: Client, settings: SourceSettings, on_loss: OnLoss) -> None:
        self.bytes_per_row: dict[TopicPartition, float] = {}
        self._client = client
        self._settings = settings
        self._on_loss = on_loss
        self._isolation = settings.fetch.isolation
        self._watch = Watch(client, self._isolation)
        self._found: dict[str, FoundTopic] = {}
        self._missing = Missing(min(MISSING_PATIENCE_S, client.settings.api_timeout_ms / 1000))
        self._not_in_target = Missing(0.0)  # where there is no later look, what is missing is told at once
        self._refreshed_at: float | None = None
        self._ends: dict[TopicPartition, int] = {}
        self._checked_epochs: dict[TopicPartition, tuple[int, int]] = {}
        self._detours: dict[TopicPartition, tuple[int, int]] = {}

    def close(self) -> None:
        self._watch.close()

    def latest(self, start: StreamOffsets, wait_ms: int) -> StreamOffsets:
        """The ends of all partitions, as soon as one of them is past `start`, or when the wait is over."""
        return self._tried(lambda: self._look(start, wait_ms))

    def ends_now(self) -> StreamOffsets:
        """The ends of all partitions that are there at this moment."""
        self._refresh(surely=True)
        places = sorted(stand(StreamOffsets(), self._found).present)
        ends = list_offsets(self._client, dict.fromkeys(places, LATEST), isolation=self._isolation)
        return StreamOffsets(self._ids(), ends)

    def towards(self, start: StreamOffsets, target: StreamOffsets) -> Standing:
        """Where a reader of `start` stands who goes to `target` and no further."""
        places: dict[str, set[int]] = {topic: set() for topic in target.ids}
        for tp in target.offsets:
            places[tp.topic].add(tp.partition)
        found = {topic: FoundTopic(target.ids[topic], frozenset(numbers)) for topic, numbers in places.items()}
        standing = self._not_in_target.look(start, found, time.monotonic(), self._settings.subscription.covers)
        self._tell(self._not_in_target, standing)
        return standing

    def check_logs(self, here: StreamOffsets, target: StreamOffsets) -> None:
        """What a watch would be told where nobody watches: that a log was cut before `here`, or ends before it."""
        self._tried(lambda: self._check_epochs(here))
        too_far = {
            tp: WatchedPosition(target.ids[tp.topic], offset)
            for tp, offset in here.offsets.items()
            if target.offsets.get(tp, offset) < offset == self._standing(tp, offset)
            if here.ids.get(tp.topic, target.ids[tp.topic]) == target.ids[tp.topic]
        }
        if too_far:
            self._tried(lambda: self._take_all(too_far))

    def _take_all(self, positions: Mapping[TopicPartition, WatchedPosition]) -> None:
        for tp, news in self._watch.look(self._there(positions)).items():
            self._take(tp, positions[tp].offset, positions[tp].offset, news)

    def estimate(self, positions: Mapping[TopicPartition, WatchedPosition]) -> None:
        """Look at one waiting batch, to know how large messages are."""
        for tp, news in self._tried(lambda: self._watch.look(self._there(positions))).items():
            self._weigh(tp, news)

    def epoch_of(self, tp: TopicPartition) -> int:
        """The term of the leader that told the end: it refuses whoever believes in an earlier one."""
        return self._client.leader_epoch(*tp)

    # Looking

    def _tried(self, action: Callable[[], T]) -> T:
        """Until nothing that may pass stands in the way. A topic that is not there although it was found passes, too,
        and so does a partition without a leader, which may be one that the topic has not any more: they are looked for
        anew, and whether they are gone is decided by who is asked for all of them."""
        return self._client.keep_trying(lambda: self._refreshing(action))

    def _refreshing(self, action: Callable[[], T]) -> T:
        try:
            return action()
        except KafkaError as error:
            if not is_missing(error) and not may_pass(error):
                raise
            self._refresh()
            if may_pass(error):
                raise
            raise refusal(ErrorCode.NOT_LEADER_OR_FOLLOWER, str(error)) from error

    def _there(self, positions: Mapping[TopicPartition, WatchedPosition]) -> dict[TopicPartition, WatchedPosition]:
        """Without those of topics that are gone or made again: whoever reads them will tell."""
        return {
            tp: position
            for tp, position in positions.items()
            if (found := self._found.get(tp.topic)) is not None
            if found.topic_id == position.topic_id and tp.partition in found.partitions
        }

    def _look(self, start: StreamOffsets, wait_ms: int) -> StreamOffsets:
        self._refresh_if_old(start)
        self._check_epochs(start)
        standing = self._missing.look(start, self._found, time.monotonic(), self._settings.subscription.covers)
        self._tell(self._missing, standing)
        here = standing.offsets
        positions = {
            tp: WatchedPosition(here.ids[tp.topic], self._standing(tp, here.offsets[tp]))
            for tp in sorted(standing.present)
        }
        found = self._watch.poll(positions, wait_ms, HOLD_MS) if wait_ms else self._watch.look(positions)
        for tp, news in found.items():
            self._take(tp, positions[tp].offset, here.offsets[tp], news)
        unknown = {tp: LATEST for tp in positions if tp not in self._ends}
        if unknown:
            self._ends |= list_offsets(self._client, unknown, isolation=self._isolation)
        return forward(here, {tp: self._ends[tp] for tp in positions})

    def _tell(self, missing: Missing, standing: Standing) -> None:
        for loss in standing.losses:
            self._on_loss(loss)
        missing.note_told()  # not where `on_loss` raised: who looks again (the archive has grown) hears it again

    def _check_epochs(self, start: StreamOffsets) -> None:
        """After a new leader's election: was the log cut before the place where reading goes on? It may have grown past
        it since, with other messages than those that were read."""
        known = {tp: (self.epoch_of(tp), epoch) for tp, epoch in start.epochs.items() if tp.topic in self._found}
        doubtful = {
            tp: epoch
            for tp, (now, epoch) in known.items()
            if now > epoch and self._checked_epochs.get(tp) != (now, epoch)
            if start.ids.get(tp.topic) == self._found[tp.topic].topic_id
            if tp.partition in self._found[tp.topic].partitions
        }
        if not doubtful:
            return
        for tp, end in ends_of_epochs(self._client, doubtful).items():
            if end < start.offsets[tp]:
                self._on_loss(
                    f"{tp}: the log was cut at offset {end} and written anew; what was read from there to offset "
                    f"{start.offsets[tp]} is gone, and what is there now was not read"
                )
            self._checked_epochs[tp] = known[tp]

    def _refresh_if_old(self, start: StreamOffsets) -> None:
        age_max_s = self._settings.metadata_max_age_ms / 1000
        is_incomplete = bool(start.topics - self._found.keys())
        if self._refreshed_at is None or is_incomplete or time.monotonic() - self._refreshed_at > age_max_s:
            self._refresh()

    def _refresh(self, *, surely: bool = False) -> None:
        topics = find_topics(self._client, self._settings.subscription, surely=surely)
        places = partitions_of(topics, self._settings.subscription)
        fresh = {
            name: FoundTopic(topic.topic_id, frozenset(tp.partition for tp in places if tp.topic == name))
            for name, topic in topics.items()
        }
        for name, (topic_id, _) in self._found.items():
            if name not in fresh or fresh[name].topic_id != topic_id:
                self._ends = {tp: offset for tp, offset in self._ends.items() if tp.topic != name}
        self._found = fresh
        self._refreshed_at = time.monotonic()

    def _ids(self) -> dict[str, UUID]:
        return {name: topic_id for name, (topic_id, _) in self._found.items()}

    def _standing(self, tp: TopicPartition, offset: int) -> int:
        """Where to watch a partition whose reader stands at `offset`: elsewhere if that place is gone."""
        instead_of, elsewhere = self._detours.get(tp, (-1, -1))
        return elsewhere if instead_of == offset else offset

    # News

    def _take(self, tp: TopicPartition, watched: int, start: int, news: News) -> None:
        if news.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._find_detour(tp, watched, start)
        elif news.error_code in _TOPIC_IS_GONE:
            self._refreshed_at = None  # the next look sees whether it is gone, made again, or not yet known to a broker
            self._client.forget_leaders([tp.topic])
            raise refusal(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"watch of {tp}")
        elif news.error_code:
            self._client.forget_leaders([tp.topic])
            raise refusal(news.error_code, f"watch of {tp}")
        else:
            self._ends[tp] = news.end_offset
            self._weigh(tp, news)
            if watched < start:  # a log that lost its end and grows again: waited for until it is as long as it was
                self._detours[tp] = (start, min(news.end_offset, start))

    def _find_detour(self, tp: TopicPartition, watched: int, start: int) -> None:
        first, last = (
            list_offsets(self._client, {tp: when}, isolation=self._isolation)[tp] for when in (EARLIEST, LATEST)
        )
        if first > watched:
            self._on_loss(f"{tp}: offsets {start} to {first - 1} are deleted, the log begins at {first}")
            self._detours[tp] = (start, first)
        elif last < watched:
            self._on_loss(f"{tp}: the log ends at {last}, before offset {start}, where reading goes on")
            self._detours[tp] = (start, last)
        self._ends[tp] = last

    def _weigh(self, tp: TopicPartition, news: News) -> None:
        if news.bytes_per_row is not None:
            before = self.bytes_per_row.get(tp, news.bytes_per_row)
            self.bytes_per_row[tp] = before + _NEW_WEIGHT * (news.bytes_per_row - before)
