"""Settings that change while the broker runs: of brokers, groups and subscriptions to clients' metrics.

What is changed for this broker (Kafka's resource "1") wins over what is changed for all (""), and that over the file
and flags it was started with. What can be changed: every default that topics inherit, and what is declared as dynamic.
The rest is read only. Names that nobody knows are kept without effect, as Kafka keeps them: they may belong to a
plugin.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from clarion.broker.config import BrokerConfig
from clarion.broker.settings import BROKER_SETTINGS, OWN_SETTINGS, OwnSetting
from clarion.cluster import SettingsRegistry
from clarion.groups.names import check_group_id
from clarion.model.broker_defaults import DYNAMIC_DEFAULTS, in_topic_names, with_dynamic
from clarion.model.client_metrics_settings import parse_client_metrics_settings
from clarion.model.errors import ErrorCode, KafkaError
from clarion.model.group_settings import (
    HEARTBEAT_INTERVAL,
    SESSION_TIMEOUT,
    SHARE_FIELDS,
    ConsumerTimes,
    consumer_times,
    parse_group_settings,
)
from clarion.model.setting_changes import AlterOperation, Edit, changed
from clarion.model.setting_kinds import Kind, Value
from clarion.model.topic_settings import CHECKED_TOGETHER, TopicSettings, parse
from clarion.world import event_log

if TYPE_CHECKING:
    from clarion.broker.broker import Broker
    from clarion.broker.group_service import GroupService

log = event_log("broker")

BROKER: Final = "broker"  # the kind in the registry of settings; its names are "" for all and the broker's id
ALL_BROKERS: Final = ""
GROUP: Final = "group"
CLIENT_METRICS: Final = "client-metrics"
_SUBSCRIPTION_CHARS_MAX: Final = 249  # of a subscription's name; as long as a topic's


OWN_DYNAMIC: Final[Mapping[str, OwnSetting]] = {
    name: own for name, own in OWN_SETTINGS.items() if own.declared.is_dynamic
}
READ_ONLY: Final = frozenset(name for name, declared in BROKER_SETTINGS.items() if not declared.is_dynamic)
"""What only a restart changes."""


def static_defaults(config: BrokerConfig) -> TopicSettings:
    """What topics inherit from a broker that was started like this."""
    told = in_topic_names(config.topic_defaults)
    return parse({"clarion.durability": config.durability.value, **told}, TopicSettings())


class DynamicSettings:
    def __init__(self, config: BrokerConfig, settings: SettingsRegistry) -> None:
        self._settings = settings
        self.static_config = config
        self.static_defaults = static_defaults(config)
        self.defaults = self._read_defaults()  # what topics inherit now
        self._on_change: list[Callable[[BrokerConfig], None]] = []

    @property
    def of_this_broker(self) -> Mapping[str, str]:
        return self._settings.get(BROKER, str(self.static_config.node_id))

    @property
    def of_all_brokers(self) -> Mapping[str, str]:
        return self._settings.get(BROKER, ALL_BROKERS)

    def _read_defaults(self) -> TopicSettings:
        """What this version cannot read any more, or what no longer goes with the file, is left out: the broker starts.

        Only that: without a retention that somebody has made longer, messages would go.
        """
        defaults = self.static_defaults
        try:
            return with_dynamic(defaults, self.of_this_broker, self.of_all_brokers)
        except KafkaError:
            for layer in (self.of_all_brokers, self.of_this_broker):
                for name in sorted(layer):
                    try:
                        defaults = with_dynamic(defaults, {name: layer[name]})
                    except KafkaError as error:
                        log.warning("dynamic_setting_ignored", setting=name, reason=error.message)
            return defaults

    def config(self) -> BrokerConfig:
        config = self.static_config
        for name, own in OWN_DYNAMIC.items():
            told = self.of_this_broker.get(name, self.of_all_brokers.get(name))
            if told is not None:
                config = _changed_or_not(own, config, told)
        return config

    def on_change(self, callback: Callable[[BrokerConfig], None]) -> None:
        """Called with what holds now after every change of the broker's own settings."""
        self._on_change.append(callback)

    def follow(self, broker: Broker) -> None:
        """What another broker of the cluster changes holds here too, as soon as the store tells of it."""
        self._settings.on_change(lambda kind, name: self._hear(broker, kind, name))

    def _hear(self, broker: Broker, kind: str, name: str) -> None:
        if kind == BROKER and name in (ALL_BROKERS, str(self.static_config.node_id)):
            broker.turns.start(self._take_up(broker), lambda: None)
        elif kind == GROUP:
            self._tell_group_or_say_why(broker.groups, name)

    async def _take_up(self, broker: Broker) -> None:
        async with broker.changing:
            await self._apply(broker)

    async def alter(self, broker: Broker, name: str, edit: Edit, *, validate_only: bool) -> None:
        """Change the settings of this broker or of all; they hold when this returns."""

        def to(present: Mapping[str, str]) -> Mapping[str, str]:
            after = changed(present, edit, self._list_in_force)
            self._check(broker, edit, name, after)
            return after

        if validate_only:
            to(self._settings.get(BROKER, name))
            return
        async with broker.changing:
            await self._settings.change(BROKER, name, to)
            log.info("broker_configured", broker=name, settings=dict(self._settings.get(BROKER, name)))
            await self._apply(broker)

    async def reload(self, broker: Broker, config: BrokerConfig) -> None:
        """What the broker was started with is this now; what was changed at run time still wins over it."""
        defaults = with_dynamic(static_defaults(config), self.of_this_broker, self.of_all_brokers)
        _check_topics(broker, defaults)
        async with broker.changing:
            self.static_config, self.static_defaults = config, static_defaults(config)
            await self._apply(broker)

    async def _apply(self, broker: Broker) -> None:
        """A topic that is being made would miss it: they stand still meanwhile."""
        broker.config = self.config()
        broker.partitions.defaults = self.defaults = self._read_defaults()
        by_overrides: dict[tuple[tuple[str, str], ...], TopicSettings] = {}
        async for topic in broker.turns.each(broker.image.topics.values()):
            key = tuple(sorted(topic.overrides.items()))
            if key not in by_overrides:
                by_overrides[key] = broker.partitions.settings_of(topic)
            broker.partitions.configure(topic, by_overrides[key])
            broker.resolver.change()  # at once: the next request may be served from what was true before
        for callback in self._on_change:
            callback(broker.config)

    def _list_in_force(self, name: str) -> str | None:
        declared = DYNAMIC_DEFAULTS.get(name)
        if declared is None or declared.kind is not Kind.LIST:
            return None
        return self.defaults.text(declared.name)

    def _check(self, broker: Broker, edit: Edit, name: str, after: Mapping[str, str]) -> None:
        """Kafka calls what cannot be here a bad request, not a bad setting."""
        fixed = sorted({one.name for one in edit.changes if one.operation != AlterOperation.DELETE} & READ_ONLY)
        if fixed:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"Cannot update these configs dynamically: [{', '.join(fixed)}]"
            )
        try:
            for own_name, own in OWN_DYNAMIC.items():
                if own_name in after:
                    own.changed(self.static_config, after[own_name])
            with_dynamic(self.static_defaults, after)
            is_for_all = name == ALL_BROKERS
            layers = (self.of_this_broker, after) if is_for_all else (after, self.of_all_brokers)
            defaults = with_dynamic(self.static_defaults, *layers)
            _check_topics(broker, defaults)
        except KafkaError as error:
            raise KafkaError(ErrorCode.INVALID_REQUEST, error.message) from error

    # Groups

    def of_group(self, name: str) -> Mapping[str, str]:
        return self._settings.get(GROUP, name)

    def static_group_setting(self, name: str) -> str | None:
        """What a group inherits from the broker's configuration; None where the broker has no say."""
        times = self._consumer_times
        return {
            SESSION_TIMEOUT: str(times.session_timeout_ms),
            HEARTBEAT_INTERVAL: str(times.heartbeat_interval_ms),
        }.get(name)

    async def alter_group(self, groups: GroupService, name: str, edit: Edit, *, validate_only: bool) -> None:
        if not name:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Default group resources are not allowed.")
        check_group_id(name)

        def to(present: Mapping[str, str]) -> Mapping[str, str]:
            after = changed(present, edit, _no_list)
            parse_group_settings(after, self._consumer_times)
            return after

        if validate_only:
            to(self.of_group(name))
            return
        await self._settings.change(GROUP, name, to)
        log.info("group_configured", group=name, settings=dict(self.of_group(name)))
        self._tell_group(groups, name)

    def tell_groups(self, groups: GroupService) -> None:
        """At start: those with settings of their own."""
        for name in self._settings.names(GROUP):
            self._tell_group_or_say_why(groups, name)

    def _tell_group_or_say_why(self, groups: GroupService, name: str) -> None:
        try:
            self._tell_group(groups, name)
        except KafkaError as error:  # set by a version that thinks otherwise of it
            log.warning("group_settings_ignored", group=name, reason=error.message)

    def _tell_group(self, groups: GroupService, name: str) -> None:
        values = parse_group_settings(self.of_group(name), self._consumer_times)
        times = consumer_times(values, self._consumer_times)
        own: dict[str, Value] = {field: values[one] for one, field in SHARE_FIELDS.items() if one in values}
        if times != self._consumer_times:
            own["consumer_session_timeout_ms"] = times.session_timeout_ms
            own["consumer_heartbeat_interval_ms"] = times.heartbeat_interval_ms
        groups.configure_group(name, **own)

    @property
    def _consumer_times(self) -> ConsumerTimes:
        groups = self.static_config.groups
        return ConsumerTimes(groups.consumer_session_timeout_ms, groups.consumer_heartbeat_interval_ms)

    # Subscriptions to clients' metrics

    def of_client_metrics(self, name: str) -> Mapping[str, str]:
        return self._settings.get(CLIENT_METRICS, name)

    async def alter_client_metrics(self, name: str, edit: Edit, *, validate_only: bool) -> None:
        if not name or len(name) > _SUBSCRIPTION_CHARS_MAX:
            complaint = "is too long" if name else "can't be empty"
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Subscription name {complaint}")

        def to(present: Mapping[str, str]) -> Mapping[str, str]:
            after = changed(present, edit, _no_list)
            parse_client_metrics_settings(after)
            return after

        if validate_only:
            to(self.of_client_metrics(name))
            return
        await self._settings.change(CLIENT_METRICS, name, to)
        log.info("client_metrics_configured", subscription=name, settings=dict(self.of_client_metrics(name)))


def _check_topics(broker: Broker, defaults: TopicSettings) -> None:
    """What a topic has set may not go with what it would inherit."""
    for topic in broker.image.topics.values():
        if not CHECKED_TOGETHER.isdisjoint(topic.overrides):
            parse(topic.overrides, defaults)


def _changed_or_not(own: OwnSetting, config: BrokerConfig, told: str) -> BrokerConfig:
    try:
        return own.changed(config, told)
    except KafkaError as error:  # this version thinks otherwise of it than the one that took it; it starts nevertheless
        log.warning("dynamic_settings_ignored", reason=error.message)
        return config


def _no_list(name: str) -> None:
    """Of groups and subscriptions Kafka edits no list either."""
    return None
