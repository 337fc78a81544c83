"""Settings that are read anew while a broker runs, as after SIGHUP: what changes, and what waits for a restart."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from clarion.broker.config import BrokerConfig, ListenerConfig
from clarion.broker.settings import OWN_SETTINGS
from clarion.model.broker_defaults import in_topic_names
from clarion.model.topic_settings import TOPIC_SETTINGS


class Reloaded(NamedTuple):
    config: BrokerConfig  # what holds from now on
    changed: tuple[str, ...]  # names of settings
    left: tuple[str, ...]  # of those that are as they were, because only a restart changes them


def reloaded(running: BrokerConfig, wanted: BrokerConfig) -> Reloaded:
    config, changed, left = running, list[str](), list[str]()
    for name, own in OWN_SETTINGS.items():
        value = own.value(wanted)
        if value == own.value(running):
            continue
        if own.declared.is_dynamic and own.with_value is not None:
            config = own.with_value(config, value)
            changed.append(name)
        else:
            left.append(name)
    if len(running.listeners) == len(wanted.listeners) and not {"listeners", "advertised.listeners"} & {*left}:
        config = replace(config, listeners=tuple(map(_with_tls_of, running.listeners, wanted.listeners)))
    before, after = _defaults(running), _defaults(wanted)
    changed += [_broker_name(name) for name in TOPIC_SETTINGS if before.get(name) != after.get(name)]
    config = replace(config, topic_defaults=wanted.topic_defaults, durability=wanted.durability)
    return Reloaded(config, tuple(changed), tuple(left))


def _with_tls_of(running: ListenerConfig, wanted: ListenerConfig) -> ListenerConfig:
    """The same place; its certificate may lie elsewhere now."""
    return replace(running, tls=wanted.tls)


def _defaults(config: BrokerConfig) -> dict[str, str]:
    """What topics inherit, by their names."""
    return {"clarion.durability": config.durability.value, **in_topic_names(config.topic_defaults)}


def _broker_name(topic_setting: str) -> str:
    synonyms = TOPIC_SETTINGS[topic_setting].synonyms
    return synonyms[0] if synonyms else topic_setting
