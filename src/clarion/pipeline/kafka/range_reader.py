"""Ranges of offsets read to their ends, as Arrow columns.

While one answer is decoded the next is already under way. Ranges on the same leader are read by common requests and
decoded together, so that a hundred small partitions cost about as much as one. A leader that moves, a broker that
restarts or freezes: tried again until the client's patience ends. Messages that are gone (retention, a topic deleted
and made again, a log that was cut) are reported to `on_loss`, which raises or lets the reading go on behind them.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from uuid import UUID

from clarion.model.errors import ErrorCode, KafkaError
from clarion.model.ids import TopicPartition
from clarion.pipeline.kafka import crc
from clarion.pipeline.kafka.batches import BatchRun, FetchedBatches, check_crcs, choose, find_batches, next_offsets
from clarion.pipeline.kafka.client import Client
from clarion.pipeline.kafka.connection import BrokerConnection
from clarion.pipeline.kafka.decode import Rows, decode
from clarion.pipeline.kafka.errors import ConnectionLostError, DataLossError, may_pass, refusal
from clarion.pipeline.kafka.fetch import FETCH, Fetched, fetch_request, read_fetched
from clarion.pipeline.kafka.offsets import EARLIEST, LATEST, READ_COMMITTED, list_offsets
from clarion.pipeline.kafka.range_progress import OffsetRange, RangeProgress

log = logging.getLogger("clarion.pipeline")

OnLoss = Callable[[str], None]


def fail_on_loss(what: str) -> None:
    raise DataLossError(what + " (set failOnDataLoss to false to go on behind what is lost)")


def warn_on_loss(what: str) -> None:
    log.warning("messages lost: %s", what)


@dataclass(frozen=True, slots=True)
class FetchSettings:
    # Below 1 MiB the round trips show, above 4 MiB the processor's cache does (both measured).
    fetch_bytes: int = 4 * 1024 * 1024
    wait_ms: int = 500
    isolation: int = READ_COMMITTED
    checks_crcs: bool | None = None  # None: where the `crc32c` package is there
    with_headers: bool = False


def read_ranges(
    client: Client, ranges: Sequence[OffsetRange], settings: FetchSettings, on_loss: OnLoss = fail_on_loss
) -> Iterator[tuple[Rows, Sequence[OffsetRange]]]:
    """Columns of messages, each with the ranges that `Rows.run` points into."""
    reader = _RangeReader(client, ranges, settings, on_loss)
    while reader.left():
        yield from reader.read_some()


class _RangeReader:
    def __init__(self, client: Client, ranges: Sequence[OffsetRange], settings: FetchSettings, on_loss: OnLoss) -> None:
        self._client = client
        self._settings = settings
        self._on_loss = on_loss
        self._all = [RangeProgress(one, settings.fetch_bytes) for one in ranges]
        self._trouble_since: float | None = None
        self._pause_ms = client.settings.retry_backoff_ms
        self._asked_at = 0.0

    def left(self) -> list[RangeProgress]:
        return [one for one in self._all if not one.is_done]

    def read_some(self) -> Iterator[tuple[Rows, Sequence[OffsetRange]]]:
        """Read from one leader until all its ranges are done, or until something stands in the way."""
        leader: int | None = None
        try:
            share = self._one_leaders_share()
            if share is None:
                return
            leader, group = share
            for part in self._read_from(leader, group):
                self._trouble_since = None
                self._pause_ms = self._client.settings.retry_backoff_ms
                yield part
        except Exception as error:  # `_back_off` raises it unless it may pass
            if leader is not None:
                self._client.drop(leader)
            self._back_off(error)

    def _one_leaders_share(self) -> tuple[int, list[RangeProgress]] | None:
        """Ranges of one leader, of each partition the first: an answer does not say which of two it belongs to."""
        firsts: dict[tuple[UUID, int], RangeProgress] = {}
        for one in self.left():
            firsts.setdefault(one.place, one)
        by_leader: dict[int, list[RangeProgress]] = defaultdict(list)
        for one in firsts.values():
            if (leader := self._leader_of(one)) is not None:
                by_leader[leader].append(one)
        return next(iter(by_leader.items()), None)

    def _leader_of(self, one: RangeProgress) -> int | None:
        """None: there is none any more, because the topic is another one by now, or none; that has been told."""
        try:
            return self._client.leader(one.range.topic, one.range.partition)
        except KafkaError as error:
            if error.code not in (ErrorCode.LEADER_NOT_AVAILABLE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
                raise
            self._check_the_topic_is_there(one)
            if not one.is_done:
                raise refusal(ErrorCode.LEADER_NOT_AVAILABLE, f"{one.range} has no leader") from error
            return None

    def _back_off(self, error: Exception) -> None:
        """Wait a little if the trouble may pass, and not for ever."""
        if not may_pass(error):
            raise error
        now = time.monotonic()
        self._trouble_since = self._trouble_since or now
        if now - self._trouble_since > self._client.settings.api_timeout_ms / 1000:
            error.add_note(f"gave up after {self._client.settings.api_timeout_ms / 1000:g} s")
            raise error
        self._client.forget_leaders({one.range.topic for one in self.left()})
        time.sleep(self._pause_ms / 1000)
        self._pause_ms = min(2 * self._pause_ms, self._client.settings.retry_backoff_max_ms)

    # One leader

    def _read_from(self, leader: int, group: list[RangeProgress]) -> Iterator[tuple[Rows, Sequence[OffsetRange]]]:
        connection = self._client.connection(leader)
        self._send(connection, group)
        while True:
            answer = connection.receive(extra_ms=self._settings.wait_ms, in_place=True)
            fetched = read_fetched(answer)
            progress, runs = self._match(fetched, group)
            self._trouble_since = None
            # The buffer itself, which is quicker to index than a view of it. Decoding copies out of it what it gives.
            frame: bytearray = memoryview(answer.data).obj  # type: ignore[assignment]
            found = find_batches(frame, runs)
            came = self._advance(progress, runs, found)
            # Whoever got something queues up behind those who got nothing, as one of them alone may fill an answer.
            group = [one for one in group if one.place not in came] + [one for one in group if one.place in came]
            group = [one for one in group if not one.is_done]
            trouble = self._send_ahead(connection, group) if group else None
            yield from self._decode(frame, found, runs, progress)
            if trouble is not None:
                raise trouble
            if not group:
                return

    def _send_ahead(self, connection: BrokerConnection, group: Sequence[RangeProgress]) -> ConnectionLostError | None:
        """The next request. If it cannot be sent, what has already arrived must still come out first."""
        try:
            self._send(connection, group)
        except ConnectionLostError as error:
            return error
        return None

    def _send(self, connection: BrokerConnection, group: Sequence[RangeProgress]) -> None:
        settings = self._settings
        wanted = [one.wanted() for one in group]
        self._asked_at = time.monotonic()
        connection.send(
            FETCH,
            fetch_request(
                wanted,
                isolation=settings.isolation,
                wait_ms=settings.wait_ms,
                bytes_max=max(settings.fetch_bytes, wanted[0].bytes_max),
            ),
        )

    def _match(self, fetched: list[Fetched], group: list[RangeProgress]) -> tuple[list[RangeProgress], list[BatchRun]]:
        """The parts of an answer that hold data, and whose they are. Errors are dealt with on the way."""
        by_place = {one.place: one for one in group}
        some_came = any(part.length for part in fetched)
        progress: list[RangeProgress] = []
        runs: list[BatchRun] = []
        for part in fetched:
            one = by_place.get((part.topic_id, part.partition))
            if one is None:
                continue
            if part.error_code:
                self._on_error(one, part.error_code)
            elif part.length:
                progress.append(one)
                runs.append(
                    BatchRun(str(one.range), part.at, part.length, one.next_offset, one.range.end, part.aborted)
                )
            else:
                self._on_nothing(one, part, some_came)
        return progress, runs

    def _advance(
        self, progress: list[RangeProgress], runs: list[BatchRun], found: FetchedBatches
    ) -> set[tuple[UUID, int]]:
        """Note what came; the places that advanced."""
        followings = zip(progress, runs, next_offsets(found, runs), strict=True)
        return {one.place for one, run, following in followings if one.on_data(following, run.length)}

    def _decode(
        self, frame: bytearray, found: FetchedBatches, runs: list[BatchRun], progress: list[RangeProgress]
    ) -> Iterator[tuple[Rows, Sequence[OffsetRange]]]:
        chosen = choose(found, runs)
        checks = self._settings.checks_crcs
        if crc.IS_FAST if checks is None else checks:
            check_crcs(frame, chosen, runs)
        ranges = [one.range for one in progress]
        for rows in decode(frame, chosen, runs, with_headers=self._settings.with_headers):
            yield rows, ranges

    # What goes wrong with one partition

    def _on_error(self, one: RangeProgress, error_code: int) -> None:
        if error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._skip_what_is_gone(one)
        elif error_code in (ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
            self._check_the_topic_is_there(one)
            raise refusal(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"fetch of {one.range}")
        else:
            raise refusal(error_code, f"fetch of {one.range} from offset {one.next_offset}")

    def _skip_what_is_gone(self, one: RangeProgress) -> None:
        tp = TopicPartition(one.range.topic, one.range.partition)
        self._check_the_topic_is_there(one)
        if one.is_done:
            return
        first, last = (
            list_offsets(self._client, {tp: when}, isolation=self._settings.isolation)[tp]
            for when in (EARLIEST, LATEST)
        )
        loss = one.on_out_of_range(first, last)
        if loss is None:
            raise refusal(ErrorCode.OFFSET_NOT_AVAILABLE, f"fetch of {tp} from offset {one.next_offset}")
        self._on_loss(loss)

    def _check_the_topic_is_there(self, one: RangeProgress) -> None:
        known = self._client.topics_surely([one.range.topic]).get(one.range.topic)
        if loss := one.on_topic(None if known is None else known.topic_id):
            self._on_loss(loss)

    def _on_nothing(self, one: RangeProgress, part: Fetched, others_came: bool) -> None:
        is_committed = self._settings.isolation == READ_COMMITTED
        loss = one.on_nothing(
            log_end=part.last_stable_offset if is_committed else part.high_watermark,
            others_came=others_came,
            asked_at=self._asked_at,
            patience_s=self._client.settings.api_timeout_ms / 1000,
        )
        if loss:
            self._on_loss(loss)
