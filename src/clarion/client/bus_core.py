"""What the blocking and the asyncio client have in common: everything that is asked of brokers, on one event loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from difflib import get_close_matches
from typing import Any, Final

from clarion.client.arguments import Duration, duration_text, milliseconds
from clarion.client.broker_links import BrokerLinks, LedTopic
from clarion.client.bus_settings import BusSettings
from clarion.client.errors import (
    ClarionError,
    InvalidRequest,
    NotConnected,
    UnknownSubscription,
    UnknownTopic,
    Unsupported,
)
from clarion.client.http_pages import HttpPages, quoted
from clarion.client.queue_reader import QueueReader
from clarion.client.topics import CreatedTopic, KnownTopics
from clarion.model.errors import KafkaError
from clarion.model.ids import topic_id_of
from clarion.model.subscription import FIELD_NAMES, QUEUE, STREAM, Subscription
from clarion.net.channel import ChannelLostError
from clarion.wire.apis import LIST_GROUPS
from clarion.wire.messages.groups import ListGroupsRequest, ListGroupsResponse

_BACKOFF_MOST: Final = "10m"  # as long as the broker's own
_SHARE: Final = "share"  # Kafka's name for groups that are queues


class BusCore:
    def __init__(self, settings: BusSettings) -> None:
        self.settings = settings
        self.links = BrokerLinks(settings)
        self.topics = KnownTopics(self.links)
        self._pages = HttpPages(self.links)
        self._made: dict[str, Subscription] = {}  # here: so that nobody need be asked how they are read

    async def open(self) -> None:
        """Fail at once where nobody listens."""
        await self.links.greet()

    async def close(self) -> None:
        self.links.close()

    # Topics

    async def create(
        self,
        topic_id: str,
        topic_name: str | None,
        partitions: int | None,
        replication: int | None,
        settings: Mapping[str, object] | None,
    ) -> CreatedTopic:
        if topic_name is not None and topic_name != topic_id:
            raise InvalidRequest(
                f"a topic's id is given by the broker: create({topic_name!r}) answers with it, and both can be used"
            )
        return await self.topics.create(topic_id, partitions, replication, settings or {})

    async def find(self, topic: str, partition: int | None = None) -> LedTopic:
        """What is remembered, unless it lacks the partition that is meant: a topic may have got more."""
        known = self.topics.known(topic)
        if known is not None and (partition is None or partition < known.partition_count):
            return known
        return await self.topics.find(topic, is_fresh=True)

    # Subscriptions

    async def subscribe(self, topic: str, name: str | None, told: Mapping[str, Any]) -> Subscription:
        found = await self.find(topic)
        asked = {"name": name or found.name, "topics": [found.name], **told}
        made = await self._pages.ask("POST", "subscriptions", asked, what=f"subscribe to {topic!r}")
        subscription = _subscription(made)
        self._made[subscription.name] = subscription
        return subscription

    async def unsubscribe(self, name: str) -> None:
        self._made.pop(name, None)
        try:
            await self._pages.ask("DELETE", f"subscriptions/{quoted(name)}", what=f"unsubscribe {name!r}")
        except UnknownSubscription:
            raise _unknown_subscription(name, await self.subscriptions()) from None

    async def subscription_called(self, told: str) -> str:
        """A subscription's name. One that has its topic's name can be called by the topic's id too."""
        _check_name(told)
        if topic_id_of(told) is None or told in await self.subscriptions():
            return told
        try:
            return (await self.find(told)).name
        except UnknownTopic:
            return told

    async def subscription(self, name: str) -> Subscription:
        _check_name(name)
        found = (await self._describe(name)).get("subscription")
        if found is None:
            raise UnknownSubscription(f"{name!r} is a group that Kafka's clients have made, and no subscription")
        return _subscription(found)

    async def subscriptions(self) -> list[str]:
        found = await self._pages.ask("GET", "subscriptions", what="list subscriptions")
        return [one["name"] for one in found["subscriptions"] if one["is_subscription"]]

    async def _describe(self, name: str) -> dict[str, Any]:
        path = f"subscriptions/{quoted(name)}"
        try:
            found: dict[str, Any] = await self._pages.ask("GET", path, what=f"subscription {name!r}")
        except UnknownSubscription:
            raise _unknown_subscription(name, await self.subscriptions()) from None
        return found

    # Reading

    async def mode_of(self, name: str, topic: LedTopic) -> str:
        """How a subscription is read; of groups that Kafka's clients have made too."""
        _check_name(name)
        if name in self._made:
            _check_readable(self._made[name], topic)
            return self._made[name].mode
        try:
            found = await self._describe(name)
        except (Unsupported, NotConnected):  # a broker without HTTP, or of another kind
            return await self._mode_of_group(name)
        if found["subscription"] is not None:
            _check_readable(_subscription(found["subscription"]), topic)
        return QUEUE if found["mode"] == QUEUE else STREAM

    async def _mode_of_group(self, name: str) -> str:
        known: dict[str, str] = {}
        away = None
        for broker in list(self.links.brokers):
            try:
                response: ListGroupsResponse = await self.links.ask(broker, LIST_GROUPS, ListGroupsRequest())
            except ChannelLostError as error:
                away = error
                continue
            known |= {group.group_id: group.group_type for group in response.groups}
        if name not in known and away is not None:
            raise NotConnected(f"read {name!r}: {away}, and may know it. Is `clarion serve` running there?")
        if name not in known:
            raise _unknown_subscription(name, known)
        return QUEUE if known[name] == _SHARE else STREAM

    async def open_queue(
        self, topic: LedTopic, name: str, prefetch: int, renews: bool, on_news: Callable[[], None]
    ) -> QueueReader:
        reader = QueueReader(self.links, [topic.name], name, prefetch=prefetch, renews=renews, on_news=on_news)
        try:
            await reader.start()
        except BaseException:
            await reader.close()
            raise
        return reader


def subscription_fields(
    *,
    mode: str,
    retention: Duration | None,
    ack_timeout: Duration,
    dead_letter_after: int,
    dead_letter_topic: str | None,
    backoff: Duration | tuple[Duration, Duration] | None,
    filter: str | None,
    start: str | timedelta,
    per_key_order: bool,
    window: int,
    message_ttl: Duration | None,
    push: Mapping[str, Any] | str | None,
    guarantee: str,
) -> dict[str, Any]:
    """What the broker is told of a new subscription; what is left out has its default there."""
    told: dict[str, Any] = {
        "mode": mode,
        "retention": None if retention is None else duration_text(retention, "retention"),
        "ack_timeout": duration_text(ack_timeout, "ack_timeout"),
        "max_deliveries": dead_letter_after,
        "dead_letter_topic": dead_letter_topic,
        "filter": filter,
        "start": duration_text(start, "start"),
        "per_key_order": per_key_order,
        "window": window,
        "message_ttl": None if message_ttl is None else duration_text(message_ttl, "message_ttl"),
        "push": {"url": push} if isinstance(push, str) else push,
        "guarantee": guarantee,
    }
    if backoff is not None:
        told |= _backoff_fields(backoff)
    return {name: value for name, value in told.items() if value is not None}


def _backoff_fields(backoff: Duration | tuple[Duration, Duration]) -> dict[str, str]:
    """The least alone doubles up to the usual most, or stays as it is where it is more than that."""
    if isinstance(backoff, tuple | list):
        if len(backoff) != 2:
            raise TypeError(f"backoff is the least, or the least and the most, not {len(backoff)} things")
        least, most = backoff
    else:
        least, most = backoff, max(backoff, _BACKOFF_MOST, key=lambda each: milliseconds(each, "backoff"))
    return {"backoff_min": duration_text(least, "backoff"), "backoff_max": duration_text(most, "backoff")}


def check_read(
    subscription: str | None, timeout: Duration | None, mode: str | None, prefetch: int, partition: int | None
) -> None:
    """What is wrong with a reading whatever it reads; told before anything of it has begun."""
    if timeout is not None:
        milliseconds(timeout, "timeout")
    if mode not in (None, QUEUE, STREAM):
        raise InvalidRequest(f"mode {mode!r}: it is {QUEUE} or {STREAM}")
    if mode == QUEUE and subscription is None:
        raise InvalidRequest("a queue is read by the name of a subscription: say which, with subscription=")
    for name, number in (("prefetch", prefetch), ("partition", partition)):
        if number is not None and (not isinstance(number, int) or isinstance(number, bool)):
            raise TypeError(f"{name} is an int, not {type(number).__name__}")
    if prefetch < 1:
        raise InvalidRequest(f"prefetch {prefetch}: it is 1 or more")


def check_whole_queue(name: str, start: object, partition: int | None, offset: int | None) -> None:
    if (start, partition, offset) != ("earliest", None, None):
        raise InvalidRequest(
            f"queue {name!r} hands out what comes next, of all partitions: leave start, partition and offset out, "
            f"or move it with `clarion subscription seek {name}`"
        )


def _check_name(name: object) -> None:
    if not isinstance(name, str):
        raise TypeError(f"a subscription's name is a str, not {type(name).__name__}")
    if not name:
        raise InvalidRequest("a subscription's name is empty")


def _check_readable(subscription: Subscription, topic: LedTopic) -> None:
    name = subscription.name
    if subscription.push is not None:
        raise InvalidRequest(f"{name!r} is pushed to {subscription.push.url}; it cannot be read as well")
    if subscription.topics and topic.name not in subscription.topics:
        raise InvalidRequest(f"{name!r} does not read {topic.name!r}, but {', '.join(subscription.topics)}")


def _unknown_subscription(name: str, known: Iterable[str]) -> UnknownSubscription:
    meant = get_close_matches(name, [*known], n=1)
    hint = f"did you mean {meant[0]!r}?" if meant else f"bus.subscribe(…, name={name!r}) makes one"
    return UnknownSubscription(f"there is no subscription {name!r}; {hint}")


def _subscription(found: Any) -> Subscription:
    try:
        return Subscription.from_json({key: value for key, value in dict(found).items() if key in FIELD_NAMES})
    except (KafkaError, TypeError, ValueError) as error:
        raise ClarionError(f"the broker answered with something that is no subscription: {error}") from error
