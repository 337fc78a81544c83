"""A follower's conversation with one leader: what it asks for, what it hears, and what becomes of it.

A conversation is a fetch session (KIP-227): a partition is named when something about it has changed, so that a
thousand quiet ones cost two empty requests per second. What comes is written at once, and the next request tells so.
With durable topics a flush ends while that request waits at the leader for news; another one is sent then, which the
leader takes as the end of the first one's waiting. Whoever waits for a message to be committed waits for all of this,
so a reply is heard, written and answered with the next request in the turn in which it comes: callbacks, not tasks.

A partition in trouble (its leader does not lead, a batch is damaged, the disk is full) leaves the conversation for a
while and comes back; the others go on. So does one that is being filled, after every large piece (`catch_up`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final
from uuid import UUID

from clarion.model.errors import ErrorCode, KafkaError, MalformedError
from clarion.model.ids import TopicId
from clarion.net.channel import Channel, ChannelLostError, ChannelUnusableError, LastingChannel
from clarion.replication.catch_up import PIECE_BYTES_MAX, PIECE_BYTES_MIN, PIECES_BYTES_MAX, CatchUp, Filling
from clarion.replication.followed import Followed
from clarion.replication.follower import FETCHES_IN_FLIGHT_MAX, Follower
from clarion.replication.membership import Identity
from clarion.replication.partition import Partition
from clarion.wire.apis import FETCH
from clarion.wire.replica_fetch import (
    LAST_VERSION,
    AskedPartition,
    FetchedPartition,
    ReplicaReply,
    ReplicaRequest,
    decode_reply,
    encode_request,
)
from clarion.world import event_log

log = event_log("replication")

MAX_WAIT_MS: Final = 500  # Kafka's replica.fetch.wait.max.ms
_PARTITION_BYTES_MAX: Final = 1 << 20  # Kafka's replica.fetch.max.bytes
_REPLY_BYTES_MAX: Final = 10 << 20  # Kafka's replica.fetch.response.max.bytes
_PAUSE_SECONDS: Final = 0.2  # of a partition in trouble; a leader hears of its election in less
_LONG_PAUSE_SECONDS: Final = 5.0  # a disk that failed or is full, and damage on the leader's, do not pass so soon
_HELD_UP_SECONDS: Final = 0.1  # of one that is being filled: then it is looked whether it still is to wait
_RECONNECT_SECONDS: Final = 0.2  # the channel has its own patience beside this
_FIRST_EPOCH: Final = 0
_EPOCH_MAX: Final = 2**31 - 1

Key = tuple[TopicId, int]
Heard = tuple[int, float, Iterator[FetchedPartition]]  # an answer: to which request, and when that was sent
OnLeader = Callable[[int, bool], None]  # a leader, and whether it has answered, or has closed the connection since
RateOf = Callable[[Partition], float | None]  # bytes per second, if an operator holds up its filling


class Conversation:
    """With one leader. Implements `committing.FlushWatcher`."""

    def __init__(
        self,
        leader: int,
        channel: LastingChannel,
        identity: Callable[[], Identity],
        now_ms: Callable[[], int],
        catch_up: CatchUp,
        rate_of: RateOf,
    ) -> None:
        self.on_leader: OnLeader | None = None
        self._is_there = False  # the leader has answered on this connection
        self._leader = leader
        self._catch_up = catch_up
        self._rate_of = rate_of
        self._channel = channel
        self._identity = identity
        self._now_ms = now_ms
        self._loop = asyncio.get_running_loop()
        self._followed: dict[Key, Followed] = {}
        self._changed: dict[Key, None] = {}  # to be named in the next request
        self._forgotten: dict[Key, None] = {}
        self._named: set[Key] = set()  # what the leader's session holds when it has all requests
        self._paused: dict[Key, asyncio.TimerHandle] = {}
        self._filled: set[Key] = set()  # those that may be being filled: more are than those that a request names
        self._session_id = 0
        self._session_epoch = _FIRST_EPOCH
        self._life = identity().broker_epoch  # in which the session was begun
        self._number = 0  # of the last request
        self._asking: deque[tuple[int, float]] = deque()  # requests that are not answered: number, and when
        self._heard: deque[Heard] = deque()  # as far as not yet dealt with
        self._will_say = False  # what is new, in the next turn
        self._talking: Channel | None = None  # while there is a connection
        self._over: asyncio.Future[float] = self._loop.create_future()  # how long to pause before the next try
        self._task = self._loop.create_task(self._run())  # which logs its own end

    def add(self, partition: Partition, follower: Follower) -> None:
        self._unpause(key := _key(partition))
        filling = None if self._is_in_sync(partition) else Filling(self._catch_up.elapsed())
        self._followed[key] = Followed(partition, follower, self._number + 1, filling)
        self._filled.add(key)
        self._forgotten.pop(key, None)
        partition.flush_watcher = self
        self._change(key)

    def remove(self, partition: Partition) -> None:
        key = _key(partition)
        known = self._followed.pop(key, None)
        if known is not None:
            if known.partition.flush_watcher is self:
                known.partition.flush_watcher = None
            self._leave_session(key)
            self._filled.discard(key)
            self._unpause(key)
            self._say_soon()

    @property
    def is_needed(self) -> bool:
        return bool(self._followed)

    def lag_of(self, partition: Partition) -> int | None:
        known = self._followed.get(_key(partition))
        if known is None or known.leader_watermark < 0:
            return None
        return max(0, known.leader_watermark - partition.next_offset)

    async def close(self) -> None:
        for key in list(self._paused):
            self._unpause(key)
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._channel.close()

    def on_saved(self, partition: Partition) -> None:
        if _key(partition) in self._followed:
            self._change(_key(partition))

    # The conversation

    async def _run(self) -> None:
        while True:
            try:
                pause_seconds = await self._talk()
            except (ChannelLostError, ChannelUnusableError, MalformedError) as error:
                log.info("replica_fetch_interrupted", leader=self._leader, reason=str(error))
                self._note(is_there=False)
                pause_seconds = _RECONNECT_SECONDS
            except Exception as error:
                # A mistake of ours. Without another try all that this broker leads would stay behind for ever.
                log.error("replica_fetches_failed", leader=self._leader, error=error)
                pause_seconds = _LONG_PAUSE_SECONDS
            await asyncio.sleep(pause_seconds)
            self._forget_session()

    async def _talk(self) -> float:
        """With a session from its beginning to its end; returns how long to wait before the next one is begun."""
        channel = await self._channel.open()
        self._over = self._loop.create_future()
        channel.on_lost = self._fail
        self._talking = channel
        try:
            self._say()
            return await self._over
        finally:
            channel.on_lost = self._talking = None
            self._asking.clear()
            self._heard.clear()

    def _fail(self, error: Exception) -> None:
        if not self._over.done():
            self._over.set_exception(error)

    def _say(self) -> None:
        self._will_say = False
        channel = self._talking
        if channel is None or self._over.done() or self._heard:
            return
        try:
            while self._has_reason_to_ask:
                self._ask(channel)
        except Exception as error:  # for `_run` to hear, not for whoever has called
            self._fail(error)

    def _say_soon(self) -> None:
        """In a turn of its own: a change seldom comes alone."""
        if not self._will_say and self._talking is not None:
            self._will_say = True
            self._loop.call_soon(self._say)

    @property
    def _has_reason_to_ask(self) -> bool:
        if not self._asking:
            return len(self._followed) > len(self._paused) or bool(self._forgotten)
        has_room = len(self._asking) < FETCHES_IN_FLIGHT_MAX and self._session_id != 0  # else it is not begun
        return has_room and bool(self._changed) and self._identity().broker_epoch == self._life

    def _change(self, key: Key) -> None:
        if key not in self._paused:
            self._changed[key] = None
            self._say_soon()

    def _ask(self, channel: Channel) -> None:
        identity = self._identity()
        if identity.broker_epoch != self._life:
            self._life = identity.broker_epoch  # what was said in another life does not count in this one
            self._forget_session()
        self._number += 1
        asked: dict[UUID, list[AskedPartition]] = {}
        for key in list(self._changed):
            known = self._followed[key]
            try:
                asked.setdefault(key[0], []).append(self._asked(key[1], known))
            except OSError as error:  # its epochs cannot be read
                self._put_off(key, known, error)
        forgotten: dict[UUID, list[int]] = {}
        for topic_id, index in self._forgotten:
            forgotten.setdefault(topic_id, []).append(index)
        self._named.difference_update(self._forgotten)
        self._named.update(self._changed)
        self._changed, self._forgotten = {}, {}
        size_max = PIECES_BYTES_MAX if self._is_filling() else _REPLY_BYTES_MAX
        session_id, epoch = self._session_id, self._session_epoch
        request = ReplicaRequest(*identity, session_id, epoch, MAX_WAIT_MS, 1, size_max, asked, forgotten)
        self._session_epoch = 1 if epoch == _EPOCH_MAX else epoch + 1
        self._asking.append((self._number, self._catch_up.elapsed()))
        channel.post(FETCH, LAST_VERSION, encode_request(request), partial(self._on_reply, self._number))

    def _is_filling(self) -> bool:
        """Whether the leader's session holds one that lacks much, named now or before."""
        for key in list(self._filled):
            if not (known := self._followed.get(key)) or not known.filling or self._is_in_sync(known.partition):
                self._filled.discard(key)
            elif key in self._named:
                return True
        return False

    def _asked(self, index: int, followed: Followed) -> AskedPartition:
        at = followed.partition.position
        followed.told_start = at.start_offset
        size = _PARTITION_BYTES_MAX if followed.filling is None else PIECE_BYTES_MAX
        return AskedPartition(
            index, at.leader_epoch, at.next_offset, at.last_epoch, at.start_offset, size, at.flushed_offset
        )

    def _note(self, *, is_there: bool) -> None:
        if self._is_there != is_there and self.on_leader is not None:
            self.on_leader(self._leader, is_there)
        self._is_there = is_there

    def _on_reply(self, number: int, body: memoryview) -> None:
        if not self._asking or self._asking[0][0] != number:
            return  # asked in a session that is over
        _, asked_at = self._asking.popleft()
        try:
            self._note(is_there=True)
            self._hear(number, asked_at, decode_reply(body))
        except Exception as error:  # for `_run` to hear, not for the channel
            self._fail(error)

    def _hear(self, number: int, asked_at: float, reply: ReplicaReply) -> None:
        if reply.error_code:
            code = ErrorCode(reply.error_code)
            is_lost = code in (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH)
            log.info("replica_fetch_refused", leader=self._leader, code=code.name)
            if not self._over.done():
                self._over.set_result(0.0 if is_lost else _RECONNECT_SECONDS)
            return
        self._session_id = reply.session_id
        if reply.session_id == 0:  # the leader keeps none: everything is named every time
            self._session_epoch = _FIRST_EPOCH
            self._named.clear()
            self._changed = dict.fromkeys(key for key in self._followed if key not in self._paused)
        self._heard.append((number, asked_at, reply.partitions))
        if len(self._heard) == 1:
            self._deal_with_heard()

    def _deal_with_heard(self) -> None:
        """Up to a large piece: behind each one clients are served."""
        try:
            while self._heard:
                number, asked_at, partitions = self._heard[0]
                for fetched in partitions:
                    self._take(number, asked_at, fetched)
                    if len(fetched.records) >= PIECE_BYTES_MIN:
                        self._loop.call_soon(self._deal_with_heard)
                        return
                self._heard.popleft()
        except Exception as error:  # likewise
            self._fail(error)
        self._say()

    def _forget_session(self) -> None:
        """Everything is to be said anew."""
        self._session_id, self._session_epoch = 0, _FIRST_EPOCH
        self._forgotten = {}
        self._named.clear()
        for key in list(self._paused):
            self._unpause(key)
        for known in self._followed.values():
            known.valid_from = self._number + 1
        self._changed = dict.fromkeys(self._followed)

    # One partition

    def _take(self, number: int, asked_at: float, fetched: FetchedPartition) -> None:
        key = (fetched.topic_id, fetched.index)
        known = self._followed.get(key)
        if known is None or number < known.valid_from or known.partition.followed is not known.follower:
            return
        began = self._catch_up.elapsed()
        try:
            if self._apply(known, fetched):
                pause = self._pause_of(known, len(fetched.records), asked_at, began)
                if pause > 0:
                    self._pause(key, known, min(pause, _HELD_UP_SECONDS))
                elif key not in self._paused:
                    self._changed[key] = None
        except Exception as error:
            # Also a mistake of ours, or an error of the disk that nobody has foreseen: it concerns this one alone.
            self._put_off(key, known, error)

    def _put_off(self, key: Key, known: Followed, error: Exception) -> None:
        is_short = False
        if isinstance(error, KafkaError):
            log.info("replica_fetch_put_off", partition=known.partition.tp, leader=self._leader, reason=str(error))
            is_short = error.code not in (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.CORRUPT_MESSAGE)
        else:
            log.error("replica_fetch_failed", partition=known.partition.tp, leader=self._leader, error=error)
        self._pause(key, known, _PAUSE_SECONDS if is_short else _LONG_PAUSE_SECONDS)

    def _pause_of(self, known: Followed, size: int, asked_at: float, began: float) -> float:
        """Of one that is being filled and has written a piece. Others wait for nothing."""
        partition = known.partition
        if (is_in_sync := self._is_in_sync(partition)) or size < PIECE_BYTES_MIN:  # others may have had the reply
            known.filling = None if is_in_sync else known.filling
            return 0.0
        now, lag = self._catch_up.elapsed(), known.leader_watermark - partition.next_offset
        filling = known.filling = known.filling or Filling(now, lag)
        self._filled.add(_key(partition))
        took_seconds = self._catch_up.seconds_of(size, asked_at, began, now)
        return self._catch_up.pause_after(filling, now, size, took_seconds, lag, self._rate_of(partition))

    def _is_in_sync(self, partition: Partition) -> bool:
        return partition.state is not None and self._identity().node_id in partition.state.in_sync

    def _still_held_up(self, known: Followed) -> float:
        """Not if it has come to be in sync meanwhile, or an operator allows another rate."""
        if known.filling is None or self._is_in_sync(known.partition):
            return 0.0
        return known.filling.wait_seconds(self._catch_up.elapsed(), self._rate_of(known.partition))

    def _apply(self, known: Followed, fetched: FetchedPartition) -> bool:
        """Whether the log is another one than the leader was told."""
        partition, now_ms = known.partition, self._now_ms()
        if fetched.error_code == ErrorCode.OFFSET_OUT_OF_RANGE and partition.begin_anew(
            fetched.log_start_offset, now_ms
        ):
            known.valid_from = self._number + 1
            return True
        if fetched.error_code:
            raise KafkaError(ErrorCode(fetched.error_code))
        if fetched.diverging_epoch is not None:
            partition.cut_where_logs_part(*fetched.diverging_epoch, now_ms)
            known.valid_from = self._number + 1
            return True
        is_new = bool(fetched.records) and partition.append_fetched(fetched.records, now_ms) > 0
        partition.note_leader(fetched.high_watermark, fetched.log_start_offset)
        known.leader_watermark = fetched.high_watermark
        return is_new or partition.told_start != known.told_start  # which its own retention may have raised, too

    def _pause(self, key: Key, known: Followed, seconds: float) -> None:
        """Out of the session, which would tell of the same trouble at once."""
        self._leave_session(key)
        known.valid_from = self._number + 2  # the request after the one that takes it out, or that ends the pause
        self._paused[key] = self._loop.call_later(seconds, self._end_pause, key)
        self._say_soon()

    def _end_pause(self, key: Key) -> None:
        del self._paused[key]
        known = self._followed.get(key)
        if known is not None and (seconds := self._still_held_up(known)) > 0:
            self._paused[key] = self._loop.call_later(min(seconds, _HELD_UP_SECONDS), self._end_pause, key)
        elif known is not None:
            known.valid_from = self._number + 1
            self._forgotten.pop(key, None)
            self._change(key)

    def _unpause(self, key: Key) -> None:
        if (timer := self._paused.pop(key, None)) is not None:
            timer.cancel()

    def _leave_session(self, key: Key) -> None:
        self._changed.pop(key, None)
        if key in self._named:
            self._forgotten[key] = None


def _key(partition: Partition) -> Key:
    return partition.topic_id, partition.tp.partition
