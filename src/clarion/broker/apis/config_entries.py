"""Settings as clients see them: value, where it comes from, what stands behind it, and what it means.

A topic's value comes from its own override, or from what was changed for this broker or for all of them, or from what
this broker was started with, or is the default. Of a setting that is sensitive the name is told, and no value.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Final, NamedTuple

from clarion.broker.authorizer import Operation, Principal
from clarion.broker.broker import Broker
from clarion.broker.config import BrokerConfig
from clarion.broker.dynamic_settings import DynamicSettings
from clarion.broker.settings import OWN_SETTINGS, OwnSetting, listener_protocol
from clarion.model.broker_defaults import BROKER_SYNONYMS, DEFAULT_BEHIND, DYNAMIC_DEFAULTS
from clarion.model.client_metrics_settings import CLIENT_METRICS_SETTINGS
from clarion.model.errors import KafkaError
from clarion.model.group_settings import GROUP_SETTINGS
from clarion.model.setting_kinds import Kind, Setting, write_value
from clarion.model.topic_settings import TOPIC_SETTINGS, in_present_names, parse
from clarion.world.log_levels import log_levels


class ResourceType(IntEnum):
    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


def require_for_configs(broker: Broker, who: Principal, operation: Operation, resource_type: int, name: str) -> None:
    """Settings of topics and groups are theirs, all others the cluster's."""
    match resource_type:
        case ResourceType.TOPIC:
            broker.resolver.require_topic(who, operation, name)
        case ResourceType.GROUP:
            broker.resolver.require_group(who, operation, name)
        case _:
            broker.resolver.require_cluster(who, operation)


class Source(IntEnum):
    TOPIC = 1
    THIS_BROKER = 2
    ALL_BROKERS = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    LOGGER = 6
    CLIENT_METRICS = 7
    GROUP = 8


class Synonym(NamedTuple):
    name: str
    value: str | None
    source: Source


class ConfigEntry(NamedTuple):
    name: str
    value: str | None
    kind: int  # of `Kind`, or 0 where nobody knows
    doc: str
    is_read_only: bool
    synonyms: tuple[Synonym, ...]  # all that was said about it, the strongest first; the first one counts
    is_sensitive: bool = False
    only_source: Source | None = None  # where there are no synonyms to tell it

    @property
    def source(self) -> Source:
        if self.only_source is not None:
            return self.only_source
        return self.synonyms[0].source if self.synonyms else Source.DEFAULT


UNKNOWN_KIND: Final = 0


def topic_entries(overrides: Mapping[str, str], dynamic: DynamicSettings) -> list[ConfigEntry]:
    """Every setting of a topic, in alphabetical order."""
    overrides = in_present_names(overrides)
    settings = parse(overrides, dynamic.defaults)
    entries = []
    for declared in TOPIC_SETTINGS.values():
        value = settings.text(declared.name)
        synonyms = _default_synonyms(declared, dynamic) if declared.synonyms else ()
        if declared.name in overrides:
            synonyms = (Synonym(declared.name, value, Source.TOPIC), *synonyms)
        entries.append(ConfigEntry(declared.name, value, declared.kind, declared.doc, False, synonyms))
    return entries


def _default_synonyms(declared: Setting, dynamic: DynamicSettings) -> tuple[Synonym, ...]:
    """What stands behind a topic's setting, by the broker's first name for it."""
    name = declared.synonyms[0]
    found = [
        Synonym(name, _as_read(declared, layer[name]), source) for source, layer in _layers(dynamic) if name in layer
    ]
    static, builtin = dynamic.static_defaults.text(declared.name), write_value(declared.default)
    if static != builtin:
        found.append(Synonym(name, static, Source.STATIC_BROKER))
    behind = DEFAULT_BEHIND.get(name)
    if behind is None:
        found.append(Synonym(name, builtin, Source.DEFAULT))
    elif found:
        found.append(Synonym(*behind, Source.DEFAULT))
    return tuple(found)


def _as_read(declared: Setting, text: str) -> str:
    """As it is understood; what another version has stored and this one cannot read is told as it stands."""
    try:
        return write_value(declared.read(text))
    except KafkaError:
        return text


def _layers(dynamic: DynamicSettings) -> tuple[tuple[Source, Mapping[str, str]], ...]:
    return (Source.THIS_BROKER, dynamic.of_this_broker), (Source.ALL_BROKERS, dynamic.of_all_brokers)


# ------------------------------------------------------------------------------------------------ the broker's own


def broker_entries(broker: Broker) -> list[ConfigEntry]:
    """Everything that this broker was told, at start and since, by Kafka's names, in alphabetical order."""
    dynamic = broker.dynamic
    entries = [
        *(_own_entry(own, broker.config, dynamic) for name, own in OWN_SETTINGS.items() if name != _ADVERTISED),
        *(_default_entry(name, declared, dynamic) for name, declared in DYNAMIC_DEFAULTS.items()),
        *(_weaker_entry(name, declared) for name, declared in BROKER_SYNONYMS.items() if name not in DYNAMIC_DEFAULTS),
        _advertised(broker),
    ]
    known = {entry.name for entry in entries}
    strange = {name for _, layer in _layers(dynamic) for name in layer} - known
    return sorted([*entries, *(_strange_entry(name, dynamic) for name in strange)])


def all_brokers_entries(broker: Broker) -> list[ConfigEntry]:
    """What was changed for all brokers, and nothing else."""
    told = {entry.name: entry for entry in broker_entries(broker)}
    layer = broker.dynamic.of_all_brokers
    entries = []
    for name in sorted(layer):
        own = tuple(one for one in told[name].synonyms if one.source is Source.ALL_BROKERS)
        entries.append(told[name]._replace(value=own[0].value, synonyms=own))
    return entries


def _own_entry(own: OwnSetting, config: BrokerConfig, dynamic: DynamicSettings) -> ConfigEntry:
    declared = own.declared
    if declared.is_sensitive:
        return ConfigEntry(declared.name, None, declared.kind, declared.doc, True, (), is_sensitive=True)
    name = declared.name
    found = [Synonym(name, layer[name], source) for source, layer in _layers(dynamic) if name in layer]
    static, builtin = write_value(own.value(dynamic.static_config)), write_value(own.value(_UNTOLD))
    if static != builtin:
        found.append(Synonym(name, static, Source.STATIC_BROKER))
    found.append(Synonym(name, builtin, Source.DEFAULT))
    value = write_value(own.value(config))
    return ConfigEntry(name, value, declared.kind, declared.doc, not declared.is_dynamic, tuple(found))


def _default_entry(name: str, declared: Setting, dynamic: DynamicSettings) -> ConfigEntry:
    synonyms = _default_synonyms(declared, dynamic)
    doc = f"What topics inherit as {declared.name}. {declared.doc}"
    return ConfigEntry(name, synonyms[0].value if synonyms else None, declared.kind, doc, False, synonyms)


def _weaker_entry(name: str, declared: Setting) -> ConfigEntry:
    first = declared.synonyms[0]
    doc = f"Holds unless {first} is set; it can be configured at start only."
    weaker, value = DEFAULT_BEHIND[first]
    if name != weaker:  # `log.retention.minutes` stands between the two, without a default of its own
        return ConfigEntry(name, None, Kind.INT, doc, True, ())
    return ConfigEntry(name, value, Kind.INT, doc, True, (Synonym(name, value, Source.DEFAULT),))


def _strange_entry(name: str, dynamic: DynamicSettings) -> ConfigEntry:
    """It may be anybody's secret: its value is not told."""
    synonyms = tuple(Synonym(name, None, source) for source, layer in _layers(dynamic) if name in layer)
    return ConfigEntry(name, None, UNKNOWN_KIND, "Nobody here knows it.", True, synonyms, is_sensitive=True)


def _advertised(broker: Broker) -> ConfigEntry:
    told = ",".join(
        f"{listener_protocol(listener)}://{address.host}:{address.port}"
        for listener, address in zip(broker.config.listeners, broker.own_endpoints, strict=False)
    )
    synonyms = (Synonym(_ADVERTISED, told, Source.STATIC_BROKER),)
    doc = "What clients are told to connect to, per listener."
    return ConfigEntry(_ADVERTISED, told, Kind.STRING, doc, True, synonyms)


_ADVERTISED: Final = "advertised.listeners"
_UNTOLD: Final = BrokerConfig(data_dir="")  # a broker that was told nothing: what differs from it was configured


# ------------------------------------------------------------------------------------------------ groups and the rest


def group_entries(name: str, dynamic: DynamicSettings) -> list[ConfigEntry]:
    """Every setting that a group can have."""
    told = dynamic.of_group(name)
    return [_group_entry(declared, told.get(declared.name), dynamic) for declared in GROUP_SETTINGS.values()]


def _group_entry(declared: Setting, told: str | None, dynamic: DynamicSettings) -> ConfigEntry:
    builtin = write_value(declared.default)
    name = declared.synonyms[0] if declared.synonyms else declared.name
    found = [Synonym(name, builtin, Source.DEFAULT)]
    static = dynamic.static_group_setting(declared.name)
    if static is not None and static != builtin:
        found.insert(0, Synonym(name, static, Source.STATIC_BROKER))
    if told is not None:
        found.insert(0, Synonym(declared.name, _as_read(declared, told), Source.GROUP))
    return ConfigEntry(declared.name, found[0].value, declared.kind, declared.doc, False, tuple(found))


def client_metrics_entries(name: str, dynamic: DynamicSettings) -> list[ConfigEntry]:
    told = dynamic.of_client_metrics(name)
    return [_client_metrics_entry(declared, told.get(declared.name)) for declared in CLIENT_METRICS_SETTINGS.values()]


def _client_metrics_entry(declared: Setting, told: str | None) -> ConfigEntry:
    value = write_value(declared.default) if told is None else _as_read(declared, told)
    synonyms = () if told is None else (Synonym(declared.name, value, Source.CLIENT_METRICS),)
    return ConfigEntry(declared.name, value, declared.kind, declared.doc, False, synonyms)


def logger_entries() -> list[ConfigEntry]:
    return [
        ConfigEntry(name, level, UNKNOWN_KIND, "", False, (), only_source=Source.LOGGER)
        for name, level in log_levels().items()
    ]
