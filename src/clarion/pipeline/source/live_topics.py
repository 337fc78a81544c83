"""What the driver of a stream knows of its topics from moment to moment: which there are, and how far they reach.

Asked for the latest offsets, it waits for news (`kafka.watch`) and looks now and then for new topics and partitions.
What has gone missing since the stream stood at `start` (a topic deleted, or deleted and made again; offsets that
retention has overtaken; a log that lost its end) is told to `on_loss`, which raises or lets the stream go on.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final
from uuid import UUID

from clarion.model.errors import ErrorCode
from clarion.pipeline.kafka.client import Client
from clarion.pipeline.kafka.errors import refusal
from clarion.pipeline.kafka.metadata import TopicInfo
from clarion.pipeline.kafka.offsets import EARLIEST, LATEST, TopicPartition, list_offsets
from clarion.pipeline.kafka.range_reader import OnLoss
from clarion.pipeline.kafka.watch import News, Position, Watch
from clarion.pipeline.source.offsets import StreamOffsets
from clarion.pipeline.source.options import SourceSettings
from clarion.pipeline.source.positions import find_topics, partitions_of

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
        self._topics: dict[str, TopicInfo] = {}
        self._refreshed_at: float | None = None
        self._ends: dict[TopicPartition, int] = {}
        self._firsts: dict[tuple[UUID, int], int] = {}
        self._detours: dict[TopicPartition, tuple[int, int]] = {}

    def close(self) -> None:
        self._watch.close()

    def latest(self, start: StreamOffsets, wait_ms: int) -> StreamOffsets:
        """The ends of all partitions, as soon as one of them is past `start`, or when the wait is over."""
        return self._client.keep_trying(lambda: self._look(start, wait_ms))

    def ends_now(self) -> StreamOffsets:
        """The ends of all partitions at this moment."""
        self._refresh()
        places = partitions_of(self._topics, self._settings.subscription)
        ends = list_offsets(self._client, dict.fromkeys(places, LATEST), isolation=self._isolation)
        return StreamOffsets(self._ids(), ends)

    def beginnings(self, start: StreamOffsets, end: StreamOffsets) -> dict[TopicPartition, int]:
        """Where each partition of `end` begins after `start`: one that is new begins at its earliest offset."""
        known = {tp for tp in end.offsets if tp in start.offsets and end.ids[tp.topic] == start.ids.get(tp.topic)}
        new = {tp: (end.ids[tp.topic], tp.partition) for tp in end.offsets if tp not in known}
        asked = {tp: EARLIEST for tp, key in new.items() if key not in self._firsts}
        for tp, offset in list_offsets(self._client, asked, isolation=self._isolation).items() if asked else ():
            self._firsts[new[tp]] = offset
        return {tp: start.offsets[tp] if tp in known else self._firsts[new[tp]] for tp in end.offsets}

    def check_nothing_is_gone(self, start: StreamOffsets, now: StreamOffsets) -> None:
        """Tell of topics that were there at `start` and are not there now, or are others of the same name."""
        for topic, topic_id in start.ids.items():
            if topic not in now.ids:
                self._on_loss(f"topic {topic} is deleted")
            elif now.ids[topic] != topic_id:
                self._on_loss(
                    f"topic {topic} was deleted and made again (its id was {topic_id}, it is {now.ids[topic]})"
                )

    def estimate(self, positions: Mapping[TopicPartition, Position]) -> None:
        """Look at one waiting batch, to know how large messages are."""
        for tp, news in self._watch.poll(positions, 0).items():
            self._weigh(tp, news)

    # Looking

    def _look(self, start: StreamOffsets, wait_ms: int) -> StreamOffsets:
        self._refresh_if_old()
        self.check_nothing_is_gone(start, StreamOffsets(self._ids()))
        places = partitions_of(self._topics, self._settings.subscription)
        beginnings = self.beginnings(start, StreamOffsets(self._ids(), dict.fromkeys(places, 0)))
        positions = {
            tp: Position(self._topics[tp.topic].topic_id, self._standing(tp, offset))
            for tp, offset in beginnings.items()
        }
        for tp, news in self._watch.poll(positions, wait_ms).items():
            self._take(tp, positions[tp].offset, beginnings[tp], news)
        unknown = {tp: LATEST for tp in places if tp not in self._ends}
        if unknown:
            self._ends |= list_offsets(self._client, unknown, isolation=self._isolation)
        return StreamOffsets(self._ids(), {tp: self._ends[tp] for tp in places})

    def _refresh_if_old(self) -> None:
        age_max_s = self._settings.metadata_max_age_ms / 1000
        if self._refreshed_at is None or time.monotonic() - self._refreshed_at > age_max_s:
            self._refresh()

    def _refresh(self) -> None:
        fresh = find_topics(self._client, self._settings.subscription)
        for name, topic in self._topics.items():
            if name not in fresh or fresh[name].topic_id != topic.topic_id:
                self._ends = {tp: offset for tp, offset in self._ends.items() if tp.topic != name}
        self._topics = fresh
        self._refreshed_at = time.monotonic()

    def _ids(self) -> dict[str, UUID]:
        return {name: topic.topic_id for name, topic in self._topics.items()}

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

    def _find_detour(self, tp: TopicPartition, watched: int, start: int) -> None:
        first, last = (
            list_offsets(self._client, {tp: when}, isolation=self._isolation)[tp] for when in (EARLIEST, LATEST)
        )
        if first > watched:
            self._on_loss(f"{tp}: offsets {start} to {first - 1} are deleted, the log begins at {first}")
            self._detours[tp] = (start, first)
        elif last < watched:
            self._on_loss(f"{tp}: the log ends at {last}, before offset {start}")
            self._detours[tp] = (start, last)
        self._ends[tp] = last

    def _weigh(self, tp: TopicPartition, news: News) -> None:
        if news.bytes_per_row is not None:
            before = self.bytes_per_row.get(tp, news.bytes_per_row)
            self.bytes_per_row[tp] = before + _NEW_WEIGHT * (news.bytes_per_row - before)
