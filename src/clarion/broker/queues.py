"""The door to queues for whoever brings consumers by another way than Kafka's protocol: HTTP, and push.

    deliveries = await broker.queues.pull(who, "billing", consumer="worker-7", messages_max=10, wait_ms=20_000)
    await broker.queues.settle(who, "billing", [Settlement(one.receipt, "ack") for one in deliveries])

A consumer is a member by name alone: it joins nothing, and what it does not settle is others' when the lock ends. Its
share-partitions are the same as those of Kafka's share consumers, so both can read from one queue side by side. Only
partitions that this broker leads can be reached here.
"""

from __future__ import annotations

import asyncio
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as NotBase64
from collections.abc import Iterable, Mapping, Sequence
from struct import Struct
from struct import error as StructError
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol
from uuid import UUID
from weakref import WeakValueDictionary

from clarion.broker.authorizer import Operation, Principal
from clarion.broker.messages import read_all
from clarion.broker.queue_rules import identity_of
from clarion.broker.share_leader import ShareFetched, ShareLeader, Waiter
from clarion.broker.share_records import records_of
from clarion.broker.threads import in_thread
from clarion.cluster import Topic
from clarion.groups import share_requests
from clarion.groups.names import check_names
from clarion.model.errors import ErrorCode, KafkaError
from clarion.model.ids import TopicId, TopicPartition
from clarion.model.names import SHARE_STATE_TOPIC
from clarion.model.subscription import Subscription
from clarion.queues.acknowledgements import RULES_DECIDE, Acknowledgement, AcknowledgeType, check_acknowledgements
from clarion.queues.acquisition import Acquired, AcquireMode
from clarion.queues.state_records import ShareKey
from clarion.wire.records import Headers

if TYPE_CHECKING:
    from clarion.broker.broker import Broker

MESSAGES_MAX: Final = 1_000  # of one pull: a window's worth, as a subscription has by default
SETTLEMENTS_MAX: Final = 10_000  # in one call: the largest window
_BYTES_MAX: Final = 8 * 1024 * 1024  # of batches read for one pull: each partition gives a megabyte at most
_WAIT_MS_MAX: Final = 300_000  # nobody needs to wait longer at a time
_LOOK_AGAIN_SECONDS: Final = 2.0  # who waits looks for topics, and partitions, that have come meanwhile
_CONFIRMED_SECONDS: Final = 2.0  # after which it is asked whether what is known of a queue still holds
_TOGETHER: Final = 100  # share-partitions of which it is asked at a time whether there is something to forget
_ACTIONS: Final = {
    "ack": AcknowledgeType.ACCEPT,
    "release": AcknowledgeType.RELEASE,
    "reject": AcknowledgeType.REJECT,
    "extend": AcknowledgeType.RENEW,
}
_RECEIPT: Final = Struct(">16siqh")  # topic id, partition, offset, delivery; the consumer's name follows
_RECEIPT_LENGTH_MAX: Final = 1_000  # a consumer's name has 255 characters at most


class Delivery(NamedTuple):
    topic: str
    topic_id: TopicId
    partition: int
    offset: int
    deliveries: int  # this one counted
    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp_ms: int
    receipt: str  # what `settle` is told of it; good until the lock ends
    leader_epoch: int  # in which it was written


class Settlement(NamedTuple):
    receipt: str
    action: str  # "ack", "release", "reject" or "extend"
    delay_ms: int | None = None  # of a release; None: as the rules say
    reason: str = ""  # of a rejection
    extend_ms: int = 0  # 0: as the rules say


class Settled(NamedTuple):
    code: ErrorCode = ErrorCode.NONE
    message: str = ""


class TurnToRead(Protocol):
    """Of somebody who may not hold messages at the same time as too many others."""

    async def take(self) -> None: ...

    def give_back(self) -> None: ...


class _Receipt(NamedTuple):
    topic_id: TopicId
    partition: int
    offset: int
    deliveries: int
    consumer: str


class Queues:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._turns: dict[str, int] = {}  # by subscription: which partition is looked at first
        self._beginning: WeakValueDictionary[ShareKey, asyncio.Lock] = WeakValueDictionary()
        broker.subscriptions.on_change(lambda name, _: broker.shares.leaders.follow_rules(name))

    # Pulling

    async def pull(
        self,
        who: Principal,
        subscription: str,
        *,
        consumer: str,
        messages_max: int,
        wait_ms: int,
        bytes_max: int = _BYTES_MAX,
        turn: TurnToRead | None = None,
    ) -> list[Delivery]:
        """What there is, or what comes within the time. Who is cancelled meanwhile has taken nothing. `bytes_max`: of
        batches, but for the first; `turn` is taken while something is read and, with messages, when this returns."""
        if not 0 < messages_max <= MESSAGES_MAX:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"a pull takes 1 to {MESSAGES_MAX} messages")
        check_names(subscription, consumer)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + min(max(wait_ms, 0), _WAIT_MS_MAX) / 1000
        while True:
            queue = self._queue(who, subscription)
            leaders = await self._leaders(who, queue)
            if turn is not None:
                await turn.take()
            found = await self._take(queue, leaders, consumer, messages_max, bytes_max)
            left = deadline - loop.time()
            if found or left <= 0:
                return found
            if turn is not None:
                turn.give_back()
            waiter = Waiter(leaders)
            try:
                await waiter.wait(min(left, _LOOK_AGAIN_SECONDS), lambda: False)
            finally:
                waiter.leave()

    def give_back(self, subscription: str, deliveries: Iterable[Delivery]) -> None:
        """Whoever pulled them has gone before it could hear of them: they were not delivered."""
        for one in deliveries:
            leader = self._broker.shares.leaders.known(subscription, one.topic_id, one.partition)
            if leader is not None:
                leader.give_back(_read(one.receipt).consumer, [Acquired(one.offset, one.offset, one.deliveries)])

    def _queue(self, who: Principal, name: str) -> Subscription:
        self._broker.resolver.require_group(who, Operation.READ, name)
        subscription = self._broker.subscriptions.known(name)
        if not subscription.is_queue:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"{name} is a stream; only queues are pulled from")
        return subscription

    async def _leaders(self, who: Principal, subscription: Subscription) -> list[ShareLeader]:
        """Those of this broker, each time with another one first."""
        names = self._broker.subscriptions.topics_of(subscription)
        if not names and subscription.pattern is None:  # whoever waits would wait for ever
            raise _deleted(subscription)
        topics = [self._broker.resolver.topic(who, Operation.READ, name) for name in names]
        places = [
            (topic, index)
            for topic in topics
            for index in range(topic.partition_count)
            if self._broker.partitions.find(topic.id, index) is not None
        ]
        first = self._turns.get(subscription.name, 0) % max(len(places), 1)
        self._turns[subscription.name] = first + 1
        found: list[ShareLeader] = []
        await self._renew(subscription.name, places)
        async for topic, index in self._broker.turns.each(places[first:] + places[:first]):
            try:
                found.append(await self._leader(subscription, topic, index))
            except KafkaError:  # led by another broker, deleted, paused, or still loading: it is looked for again
                continue
        return found

    async def _renew(self, group_id: str, places: Iterable[tuple[Topic, int]]) -> None:
        """Consumers here never begin to read, so that it is seen now and then whether a queue was moved elsewhere."""
        if self._broker.node is not None:
            known = [self._broker.shares.leaders.known(group_id, topic.id, index) for topic, index in places]
            await self._broker.shares.renew((one for one in known if one is not None), _CONFIRMED_SECONDS)

    async def _leader(self, queue: Subscription, topic: Topic, index: int) -> ShareLeader:
        known = self._broker.shares.leaders.known(queue.name, topic.id, index)
        if known is not None:
            return known
        partition = self._broker.resolver.partition(topic, index)
        await self._begin(queue, ShareKey(queue.name, topic.id, index))
        self._check_begins(queue)
        return await self._broker.shares.leaders.get(queue.name, topic.id, partition)

    async def _begin(self, queue: Subscription, key: ShareKey) -> None:
        """Where no member of Kafka's has had the state begin. (Groups hear of their members' partitions alone.)"""
        states = self._broker.shares.states
        self._check_begins(queue)
        async with self._beginning.setdefault(key, asyncio.Lock()):
            if not (await states.summary(key)).is_known:
                self._check_begins(queue)
                shard = self._broker.groups.runtime.find(key.group_id)
                group = share_requests.find(shard.coordinator, key.group_id) if shard is not None else None
                epoch = group.epoch if group is not None else 0
                await states.initialize(key, epoch, subscription_ms=queue.created_ms)

    def _check_begins(self, queue: Subscription) -> None:
        """To be asked again whenever something was waited for: it may be deleted by now, and another one be there. One
        that is paused is perhaps being deleted: nothing begins for it."""
        known = self._broker.subscriptions.get(queue.name)
        if known is None or known.created_ms != queue.created_ms or known.paused:
            raise KafkaError(ErrorCode.RESOURCE_NOT_FOUND, f"{queue.name} is paused, or was deleted")

    async def _take(
        self, queue: Subscription, leaders: Sequence[ShareLeader], consumer: str, messages_max: int, bytes_left: int
    ) -> list[Delivery]:
        taken: list[tuple[ShareLeader, ShareFetched]] = []
        try:
            for leader in leaders:
                if messages_max <= 0 or bytes_left <= 0:
                    break
                fetched = await self._fetch(queue, leader, consumer, messages_max, bytes_left)
                if fetched is not None:
                    taken.append((leader, fetched))
                    messages_max -= fetched.count
                    bytes_left -= fetched.size_bytes
            return await in_thread(lambda: _deliveries(taken, consumer)) if taken else []
        except BaseException:  # cancelled, as a rule
            for leader, fetched in taken:
                leader.give_back(consumer, fetched.acquired)
            raise

    async def _fetch(
        self, queue: Subscription, leader: ShareLeader, consumer: str, messages_max: int, bytes_max: int
    ) -> ShareFetched | None:
        """By the rules that the leader has: it hears of every change of a subscription."""
        if leader.rules.identity != queue.created_ms:
            return None  # it was deleted meanwhile, and another one has its name
        try:
            fetched = await leader.fetch(consumer, leader.rules, messages_max, bytes_max, AcquireMode.RECORD_LIMIT)
            if fetched is None:
                return None
            try:
                await leader.wait_saved()
            except asyncio.CancelledError:
                leader.give_back(consumer, fetched.acquired)
                raise
        except KafkaError:  # it is no longer led here: what was not written down was not delivered
            return None
        leader.partition.bytes_out_total += fetched.size_bytes
        return fetched

    # Positions of queues whose consumers are all of this kind: no group knows of them

    async def move(self, subscription: str, offsets: Mapping[TopicPartition, int]) -> bool:
        """Where it reads on, on whichever broker. False if nobody has read from it yet: there is nothing to move."""
        shares, identity = self._broker.shares, identity_of(self._broker, subscription)
        keys = {self._key(subscription, place): offset for place, offset in offsets.items()}
        known = {key: await shares.states.summary(key) for key in keys}
        if not any(state.is_known for state in known.values()):
            return False
        for key, offset in keys.items():
            await shares.states.initialize(key, known[key].state_epoch + 1, offset, subscription_ms=identity)
            shares.leaders.forget(key)
        return True

    async def forget(self, subscription: str, places: Iterable[TopicPartition]) -> None:
        """It is deleted: one that is made under its name begins as if it were new."""
        topics = self._broker.image.topics
        known = SHARE_STATE_TOPIC in topics  # else nobody has ever read from a queue
        keys = [self._key(subscription, place) for place in places if known and place.topic in topics]
        for first in range(0, len(keys), _TOGETHER):
            await asyncio.gather(*(self._broker.shares.end(key) for key in keys[first : first + _TOGETHER]))

    def _key(self, subscription: str, place: TopicPartition) -> ShareKey:
        return ShareKey(subscription, self._broker.image.topics[place.topic].id, place.partition)

    # Settling

    async def settle(self, who: Principal, subscription: str, settlements: Sequence[Settlement]) -> list[Settled]:
        """What became of each, in their order; returns when it is durable. One that is refused does not concern the
        others: INVALID_RECORD_STATE if its lock has ended, or it was settled before."""
        if len(settlements) > SETTLEMENTS_MAX:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"at most {SETTLEMENTS_MAX} messages are settled at a time")
        queue = self._queue(who, subscription)
        results: list[Settled] = []
        touched: dict[ShareLeader, list[int]] = {}
        async for number, one in self._broker.turns.each(enumerate(settlements)):
            try:
                receipt = _read(one.receipt)
                leader = self._settled_by(who, queue, receipt)
                said = _said(one, receipt)
                check_acknowledgements([said], may_renew=True)
                leader.acknowledge(receipt.consumer, leader.rules, [said])
                touched.setdefault(leader, []).append(number)
                results.append(Settled())
            except KafkaError as error:
                results.append(Settled(error.code, error.message))
        for leader, numbers in touched.items():
            try:
                await leader.wait_saved()
            except KafkaError as error:
                for number in numbers:
                    results[number] = Settled(error.code, error.message)
        return results

    def _settled_by(self, who: Principal, queue: Subscription, receipt: _Receipt) -> ShareLeader:
        """Nothing is loaded for a receipt, and nothing begins: a lock is good as long as its share-partition is."""
        topic = self._broker.resolver.topic_by_id(who, Operation.READ, receipt.topic_id)
        leader = self._broker.shares.leaders.known(queue.name, topic.id, receipt.partition)
        if leader is None or leader.rules.identity != queue.created_ms:
            self._broker.resolver.partition(topic, receipt.partition)  # which says so if it is led elsewhere
            raise KafkaError(ErrorCode.INVALID_RECORD_STATE, "its lock has ended")
        return leader


def _deleted(subscription: Subscription) -> KafkaError:
    return KafkaError(
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        f"{subscription.name} reads {', '.join(subscription.topics)[:300]}, and nothing of it is there any more; "
        "create it anew, or delete the subscription",
    )


def _deliveries(taken: Sequence[tuple[ShareLeader, ShareFetched]], consumer: str) -> list[Delivery]:
    """For a thread."""
    found = []
    for leader, fetched in taken:
        counts = {offset: one.deliveries for one in fetched.acquired for offset in range(one.first, one.last + 1)}
        for leader_epoch, record in records_of(read_all(leader.partition, fetched.slices)):
            if record.offset in counts:
                place = _Receipt(
                    leader.key.topic_id, leader.key.partition, record.offset, counts[record.offset], consumer
                )
                found.append(
                    Delivery(
                        leader.partition.tp.topic,
                        *place[:4],
                        record.key,
                        record.value,
                        record.headers,
                        record.timestamp,
                        _write(place),
                        leader_epoch,
                    )
                )
    return found


def _said(one: Settlement, receipt: _Receipt) -> Acknowledgement:
    kind = _ACTIONS.get(one.action)
    if kind is None:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"an action is one of {', '.join(_ACTIONS)}, not {one.action!r:.40}"
        )
    delay_ms = RULES_DECIDE if one.delay_ms is None else max(one.delay_ms, 0)
    return Acknowledgement(
        receipt.offset, receipt.offset, (kind,), delay_ms, one.reason, one.extend_ms, receipt.deliveries
    )


def _write(receipt: _Receipt) -> str:
    packed = _RECEIPT.pack(receipt.topic_id.bytes, *receipt[1:4]) + receipt.consumer.encode()
    return urlsafe_b64encode(packed).rstrip(b"=").decode()


def _read(text: str) -> _Receipt:
    try:
        if len(text) > _RECEIPT_LENGTH_MAX:
            raise ValueError
        data = urlsafe_b64decode(text + "=" * (-len(text) % 4))
        topic_id, partition, offset, deliveries = _RECEIPT.unpack_from(data)
        return _Receipt(UUID(bytes=topic_id), partition, offset, deliveries, data[_RECEIPT.size :].decode())
    except (NotBase64, ValueError, StructError):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "this is not a receipt of a delivered message") from None
