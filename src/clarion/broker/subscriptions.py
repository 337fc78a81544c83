"""The subscriptions, as this broker knows them: read from memory, changed in the catalog.

Where this process is the only one that writes (one broker with a SQLite file), what it changes is known at once. Where
others write too, the catalog's revision is asked for twice a second, and only what has changed since is read. While
the catalog is away, all go on with what is known, changes are refused, and a log line and a metric say so. As long as
nobody has made a subscription, nothing is opened, imported or asked, except, in a cluster, whether there is one.

On Kafka's wire a subscription is the group of its name: a queue's rules are also that group's settings, in as far as
Kafka knows such rules, and what Kafka's protocol cannot do for a reader is refused (`check_reader`), not ignored.
"""

from __future__ import annotations

import asyncio
import base64
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from clarion.broker.authorizer import Operation, Principal
from clarion.broker.config import SQLITE_CATALOG, BrokerConfig
from clarion.broker.subscribed_topics import reads
from clarion.broker.subscription_starts import SubscriptionStarts, Topics
from clarion.catalog.access import CATALOG_FILE, OpenCatalog
from clarion.catalog.content import (
    NO_REVISION,
    CatalogAccess,
    CatalogError,
    CatalogNews,
    CatalogUnusableError,
)
from clarion.cluster import CoordinationStore
from clarion.consumers.filters import compile_filter
from clarion.groups.subscriptions import check_regex
from clarion.model.beginnings import Beginnings
from clarion.model.errors import ErrorCode, KafkaError
from clarion.model.ids import TopicPartition
from clarion.model.push_endpoint import SECRET_PREFIX
from clarion.model.setting_changes import AlterOperation, Edit, SettingChange
from clarion.model.subscription import Subscription, check_subscription_name
from clarion.world import event_log
from clarion.world.tasks import start_task

if TYPE_CHECKING:
    from clarion.broker.broker import Broker

log = event_log("broker")

_POLL_SECONDS: Final = 0.5
_SEEN_SECONDS: Final = 2 * _POLL_SECONDS  # after which a change is known to all who can reach the catalog
_AGAIN_SECONDS: Final = 2.0  # for an answer that takes milliseconds
_FIRST_SECONDS: Final = 5.0  # a start waits so long for a catalog elsewhere, and then goes on without it
_SECRET_BYTES: Final = 32
_TOPICS_REMEMBERED_MAX: Final = 100_000  # of which it is known who subscribes to them; then it is found out anew

OnChange = Callable[[str, Subscription | None], None]


def catalog_of(config: BrokerConfig, store: CoordinationStore) -> CatalogAccess | None:
    """None: a cluster whose brokers have no catalog in common."""
    if config.catalog != SQLITE_CATALOG:
        return OpenCatalog(config.catalog)
    if not config.cluster:
        return OpenCatalog(os.path.join(config.data_dir, CATALOG_FILE))
    from clarion.cluster.local_store import LocalStore  # of several brokers on one machine

    return store.catalog if isinstance(store, LocalStore) else None


class Subscriptions:
    def __init__(self, broker: Broker, catalog: CatalogAccess | None) -> None:
        self._broker = broker
        self._catalog = catalog
        self._is_shared = bool(broker.config.cluster) or broker.config.catalog != SQLITE_CATALOG
        self._by_name: dict[str, Subscription] = {}
        self._by_topic: dict[str, list[Subscription]] = {}  # of topics that somebody has asked about
        self._revision = NO_REVISION
        self.has_loaded = catalog is None
        self.is_away = False
        self._listeners: list[OnChange] = []
        self._changing = asyncio.Lock()
        self._starts = SubscriptionStarts(broker)
        self._following: asyncio.Task[None] | None = None

    # Reading

    def get(self, name: str) -> Subscription | None:
        return self._by_name.get(name)

    def known(self, name: str) -> Subscription:
        found = self._by_name.get(name)
        if found is None:
            reason = "" if self.has_loaded else "; the catalog has not been read yet"
            raise KafkaError(ErrorCode.RESOURCE_NOT_FOUND, f"there is no subscription {name[:300]!r}{reason}")
        return found

    def all(self) -> list[Subscription]:
        """By name."""
        return [self._by_name[name] for name in sorted(self._by_name)]

    def for_topic(self, topic: str) -> list[Subscription]:
        """Those that read it, by name or by pattern."""
        if not self._by_name:
            return []
        found = self._by_topic.get(topic)
        if found is None:
            if len(self._by_topic) >= _TOPICS_REMEMBERED_MAX:
                self._by_topic.clear()
            found = self._by_topic[topic] = [one for one in self.all() if reads(one, topic)]
        return found

    def topics_of(self, subscription: Subscription) -> list[str]:
        """Those that there are."""
        topics = self._broker.image.topics
        if subscription.pattern is None:
            return [name for name in subscription.topics if name in topics]
        return sorted(name for name in topics if subscription in self.for_topic(name))

    @property
    def revision(self) -> int:
        """It rises with every change that is known here."""
        return self._revision

    async def look_again(self) -> bool:
        """Whether what others have changed by now is known when this returns; not while the catalog is away."""
        if self._is_shared and self._catalog is not None and not self.is_away:
            try:
                async with asyncio.timeout(_AGAIN_SECONDS):
                    await self._refresh()
            except (CatalogError, TimeoutError):  # `_follow` finds out what is wrong with it
                return False
        return not (self._is_shared and self.is_away)

    def on_change(self, callback: OnChange) -> None:
        """Called, on the loop, with a name and what is there now; None: it was deleted."""
        self._listeners.append(callback)

    def check_reader(self, group_id: str, *, is_queue: bool, knows_filters: bool = False) -> None:
        """Whether a client of Kafka's may read as this group. What Kafka's protocol cannot do is refused.

        `knows_filters`: our own client, to which messages of a queue that do not match are no surprise.
        """
        found = self._by_name.get(group_id) if self._by_name else None
        if found is None:
            return
        what = f"subscription {group_id!r}"
        if found.push is not None:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"{what} is pushed to its endpoint; read under another group id"
            )
        if found.filter is not None and not knows_filters:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"{what} has a filter, which Kafka's protocol does not know; read it over HTTP, or under another group "
                "id without it",
            )
        if found.is_queue != is_queue:
            how = "a queue: use a share consumer" if found.is_queue else "a stream: use a consumer group"
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"{what} is {how}, or another group id")

    # Changing

    async def create(self, subscription: Subscription, who: Principal) -> Subscription:
        """As it is then. One that is there already and the same is no mistake: whoever did not hear, asks again."""
        subscription.check()
        self._require(who, Operation.ALTER_CONFIGS, subscription)
        await self._check_meaning(subscription)
        async with self._changing:
            await self._look()
            present = self._by_name.get(subscription.name)
            if present is None:
                self._check_topics(subscription)
                made = replace(
                    self._with_secret(subscription), created_ms=self._broker.clock.now_ms(), revision=NO_REVISION
                )
                made = await self._starts.of_new(made, who)
                present = await self._save(made, NO_REVISION)
                log.info("subscription_created", subscription=present.name, mode=present.mode, by=who.name)
            elif not subscription.is_same(present):
                raise _exists(subscription, present)
            await self._tell_group(present)
            return present

    async def update(self, name: str, changes: Mapping[str, Any], who: Principal) -> Subscription:
        """`changes`: fields of its JSON."""
        self._broker.resolver.require_group(who, Operation.ALTER_CONFIGS, name)
        async with self._changing:
            await self._look()
            before = self.known(name)
            after = self._with_secret(before.changed(changes))
            self._require(who, Operation.ALTER_CONFIGS, after)
            await self._check_meaning(after)
            if after.mode != before.mode:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST, "mode cannot be changed; delete the subscription, or create another one"
                )
            if after == before:
                await self._tell_group(before)  # a broker that ended in between may not have
                return before
            self._check_topics(after)
            after = await self._starts.of_changed(before, after, who)
            saved = await self._save(after, before.revision)
            log.info("subscription_changed", subscription=name, fields=sorted(changes), by=who.name)
            await self._tell_group(saved)
            return saved

    async def begun(self, group_id: str, topics: Topics, who: Principal) -> Topics:
        """What a group has committed, and where it begins if it is a stream of ours that has not read yet."""
        found = self._by_name.get(group_id)
        return topics if found is None or found.is_queue else await self._starts.begun(found, topics, who)

    async def begin_at(self, name: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Its first reader is yet to come, and begins there."""
        async with self._changing:
            await self._look()
            before = self.known(name)
            moved = (before.begins or Beginnings({})).moved(self._starts.by_topic_id(offsets))
            await self._save(replace(before, begins=moved), before.revision)

    async def suspend(self, name: str, who: Principal) -> None:
        """It is about to be deleted: nothing is delivered any more, on no broker."""
        self._broker.resolver.require_group(who, Operation.DELETE, name)
        async with self._changing:
            await self._look()
            before = self.known(name)
            if not before.paused:
                await self._save(replace(before, paused=True), before.revision)
        if self._is_shared:
            await asyncio.sleep(_SEEN_SECONDS)

    async def delete(self, name: str, who: Principal) -> Subscription:
        """What it was. Its group's positions are another matter (`subscription_actions`)."""
        check_subscription_name(name)
        self._broker.resolver.require_group(who, Operation.DELETE, name)
        async with self._changing:
            await self._look()
            before = self.known(name)
            await self._ask(lambda catalog: catalog.remove(name, before.revision))
            await self._look()
            log.info("subscription_deleted", subscription=name, by=who.name)
            await self._set_group(name, dict.fromkeys(before.group_settings()))
            return before

    def _require(self, who: Principal, operation: Operation, subscription: Subscription) -> None:
        resolver = self._broker.resolver
        resolver.require_group(who, operation, subscription.name)
        for topic in subscription.topics:
            resolver.require_topic(who, Operation.READ, topic)
        if subscription.dead_letter_topic is not None:  # the broker writes there for whoever made the subscription
            resolver.require_topic(who, Operation.WRITE, subscription.dead_letter_topic)

    async def _check_meaning(self, subscription: Subscription) -> None:
        """What has to be compiled to be known: in a thread, for CEL has to be imported first."""
        subscription.check_somebody_can_read()
        if subscription.pattern is not None:
            await self._broker.turns.aside_slowly(check_regex, subscription.pattern)
        if subscription.filter is not None:
            await self._broker.turns.aside_slowly(compile_filter, subscription.filter)

    def _check_topics(self, subscription: Subscription) -> None:
        for topic in subscription.topics:
            if topic not in self._broker.image.topics:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {topic!r}; create it first")
        for other in self._by_name.values():
            if other.name != subscription.name and other.dead_letters == subscription.dead_letters:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST,
                    f"{other.dead_letters} is the dead letter topic of {other.name!r}; name another one",
                )

    def _with_secret(self, subscription: Subscription) -> Subscription:
        if subscription.push is None or subscription.push.secret:
            return subscription
        secret = SECRET_PREFIX + base64.b64encode(self._broker.randomness.bytes(_SECRET_BYTES)).decode()
        return replace(subscription, push=replace(subscription.push, secret=secret))

    async def _save(self, subscription: Subscription, expected: int) -> Subscription:
        saved: Subscription = await self._ask(lambda catalog: catalog.save(subscription, expected))
        await self._look()
        return saved

    async def _ask(self, ask: Callable[[CatalogAccess], Any]) -> Any:
        if self._catalog is None:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                "a cluster over etcd keeps its subscriptions in PostgreSQL: set clarion.catalog to "
                "postgresql://USER:PASSWORD@HOST/DATABASE on every broker",
            )
        try:
            return await ask(self._catalog)
        except CatalogError as error:
            self._note_away(error)
            raise KafkaError(
                ErrorCode.BROKER_NOT_AVAILABLE,
                f"the catalog cannot be reached ({error}); subscriptions go on as they are, and cannot be changed now",
            ) from error

    async def _tell_group(self, subscription: Subscription) -> None:
        """What Kafka's share consumers are to see of it."""
        await self._set_group(subscription.name, subscription.group_settings())

    async def _set_group(self, name: str, settings: Mapping[str, str | None]) -> None:
        present = self._broker.dynamic.of_group(name)
        changes = [
            SettingChange(each, AlterOperation.DELETE if value is None else AlterOperation.SET, value)
            for each, value in settings.items()
            if present.get(each) != value
        ]
        if changes:
            edit = Edit(changes, replaces_all=False)
            await self._broker.dynamic.alter_group(self._broker.groups, name, edit, validate_only=False)

    # Following the catalog

    async def start(self) -> None:
        """What there is, is known when this returns; of a catalog elsewhere that does not answer, later."""
        if self._catalog is None:
            self._refuse_strays()
            return
        try:
            async with asyncio.timeout(_FIRST_SECONDS if self._is_shared else None):
                await self._refresh()
        except CatalogUnusableError:
            raise
        except (CatalogError, TimeoutError) as error:
            self._note_away(error if isinstance(error, CatalogError) else CatalogError("it does not answer"))
        if self._is_shared:
            self._following = start_task(self._follow(), "following the catalog")

    async def stop(self) -> None:
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)
        self._starts.close()
        if self._catalog is not None:
            await self._catalog.close()

    def _refuse_strays(self) -> None:
        path = os.path.join(self._broker.config.data_dir, CATALOG_FILE)
        if os.path.exists(path):
            raise CatalogUnusableError(
                f"{path} has subscriptions, and a cluster over etcd keeps them in PostgreSQL: set clarion.catalog, or "
                "move the file away to start without them"
            )

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(_POLL_SECONDS)
            try:
                await self._refresh()
            except CatalogError as error:
                self._note_away(error)

    async def _look(self) -> None:
        """Before and after a change: others may have made some."""
        await self._ask(lambda _: self._refresh())

    async def _refresh(self) -> None:
        assert self._catalog is not None
        known = self._revision
        news = await self._catalog.news(known)
        self._note_back()
        if news is not None and known == self._revision:  # else somebody has been faster
            self._take(news)
        self.has_loaded = True

    def _take(self, news: CatalogNews) -> None:
        gone = [name for name in self._by_name if name not in news.names]
        changed = [one for one in news.changed if self._by_name.get(one.name) != one]
        for name in gone:
            del self._by_name[name]
        for one in changed:
            self._by_name[one.name] = one
        self._by_topic.clear()
        self._revision = news.revision
        for name in [*gone, *(one.name for one in changed)]:
            for callback in self._listeners:
                callback(name, self._by_name.get(name))

    def _note_away(self, error: CatalogError) -> None:
        if not self.is_away:
            self.is_away = True
            log.error("catalog_away", reason=str(error), consequence="subscriptions stay as they are")

    def _note_back(self) -> None:
        if self.is_away:
            self.is_away = False
            log.info("catalog_back")


def _exists(asked: Subscription, present: Subscription) -> KafkaError:
    there, wanted = present.rules(), asked.rules()
    different = [name for name in wanted if wanted[name] != there[name]] or ["push.secret"]
    return KafkaError(
        ErrorCode.DUPLICATE_RESOURCE,
        f"subscription {present.name!r} exists with another {', '.join(different)}; change it "
        f"(clarion subscription alter, or PATCH /v1/subscriptions/{present.name}), or choose another name",
    )
