"""From a TOML file, then `CLARION_*`, then flags, to what a broker is told. Whatever makes no sense is refused by name.

[topic_defaults]
"retention.ms" = 86400000

[[listeners]]
listen = "127.0.0.1:9092"
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from clarion.broker.config import BrokerConfig, Durability, Limits
from clarion.cli.errors import CliError
from clarion.cli.listeners import LISTENER_KEYS, check_reach, check_told, listeners_of
from clarion.cli.setting_kinds import SenselessError
from clarion.cli.setting_table import BROKER_NAMES, BY_NAME, LIMIT_NAMES, SETTINGS

TOPIC_DEFAULTS: Final = "topic_defaults"
LISTENERS: Final = "listeners"
_TOPIC_ENV: Final = "CLARION_TOPIC_DEFAULT_"
_OTHER_ENV: Final = frozenset(
    {"CLARION_BOOTSTRAP", "CLARION_COMPILED", "CLARION_CONFIG"}
)  # known, but not settings of a broker


@dataclass(frozen=True, slots=True)
class ServeSettings:
    config: BrokerConfig
    log_format: str
    log_level: str


@dataclass(frozen=True, slots=True)
class Given:
    """What one source says: settings by name, topic defaults by Kafka's name, listeners as tables."""

    values: Mapping[str, Any]
    topic_defaults: Mapping[str, str]
    listeners: tuple[Mapping[str, Any], ...] = ()


def load(config_file: str | None, environment: Mapping[str, str], flags: Mapping[str, Any]) -> ServeSettings:
    """Put the sources together, the later ones winning. `flags`: by setting name, and `set` with NAME=VALUE texts."""
    path = config_file or environment.get("CLARION_CONFIG")
    sources = [_from_file(path) if path else Given({}, {}), _from_environment(environment), _from_flags(flags)]
    values = {each.name: each.default for each in SETTINGS}
    topic_defaults: dict[str, str] = {}
    listeners: tuple[Mapping[str, Any], ...] = ()
    for source in sources:
        values |= source.values
        topic_defaults |= _in_topic_names(source.topic_defaults)
        if "listen" in source.values:
            listeners = ()  # somebody closer to the keyboard says where to listen
        listeners = source.listeners or listeners
    return _assemble(values, topic_defaults, listeners)


def _assemble(
    values: Mapping[str, Any], topic_defaults: Mapping[str, str], tables: tuple[Mapping[str, Any], ...]
) -> ServeSettings:
    listeners = listeners_of(values, tables)
    metrics = values["metrics"]
    check_reach([each.host for each in listeners] + ([metrics.host] if metrics else []), values["insecure"])
    check_told(listeners)
    if values["group_min_session_timeout_ms"] > values["group_max_session_timeout_ms"]:
        raise CliError("group_min_session_timeout_ms is more than group_max_session_timeout_ms")
    _check_topic_defaults(topic_defaults, values["durability"])
    config = BrokerConfig(
        data_dir=os.path.abspath(os.path.expanduser(values["data_dir"])),
        listeners=listeners,
        metrics_host=metrics.host if metrics else "127.0.0.1",
        metrics_port=metrics.port if metrics else None,
        durability=Durability(values["durability"]),
        topic_defaults=dict(topic_defaults),
        limits=Limits(**{name: values[f"limits.{name}"] for name in LIMIT_NAMES}),
        **{name: values[name] for name in BROKER_NAMES},
    )
    return ServeSettings(config, values["log_format"], values["log_level"])


def _from_file(path: str) -> Given:
    import tomllib

    try:
        with open(path, encoding="utf-8") as file:
            content = tomllib.loads(file.read())
    except OSError as error:
        raise CliError(f"cannot read the settings in {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise CliError(f"{path} is not TOML: {error}") from error
    topics = _flat(_table(content.pop(TOPIC_DEFAULTS, {}), f"{path}: {TOPIC_DEFAULTS}"))
    tables = content.pop(LISTENERS, [])
    if tables and "listen" in content:
        raise CliError(f"{path}: either listen or [[listeners]], not both")
    values = {name: _read(f"{path}: {name}", name, raw) for name, raw in _flat(content).items()}
    return Given(values, {name: _topic_text(raw) for name, raw in topics.items()}, _listener_tables(tables, path))


def _from_environment(environment: Mapping[str, str]) -> Given:
    by_env = {each.env: each.name for each in SETTINGS}
    values, topics = {}, {}
    for variable in sorted(environment):
        if not variable.startswith("CLARION_") or variable in _OTHER_ENV:
            continue
        if variable.startswith(_TOPIC_ENV):
            topics[variable.removeprefix(_TOPIC_ENV).lower().replace("_", ".")] = environment[variable]
        elif variable in by_env:
            values[by_env[variable]] = _read(variable, by_env[variable], environment[variable])
        else:
            raise CliError(f"unknown setting {variable} in the environment{_nearest(variable, by_env)}")
    return Given(values, topics)


def _from_flags(flags: Mapping[str, Any]) -> Given:
    values, topics = {}, {}
    for text in flags.get("set") or ():
        name, equals, raw = text.partition("=")
        if not equals:
            raise CliError(f"--set {text}: write NAME=VALUE")
        if name.startswith(f"{TOPIC_DEFAULTS}."):
            topics[name.removeprefix(f"{TOPIC_DEFAULTS}.")] = raw
        else:
            values[name] = _read(f"--set {name}", name, raw)
    for setting in SETTINGS:
        raw = flags.get(setting.parameter) if setting.flag else None
        if setting.flag and raw is not None and raw is not False and raw != []:
            values[setting.name] = _read(setting.flag, setting.name, raw)
    return Given(values, topics)


def _read(where: str, name: str, raw: Any) -> Any:
    setting = BY_NAME.get(name)
    if setting is None:
        raise CliError(f"unknown setting {where}{_nearest(name, BY_NAME)}")
    try:
        return setting.kind.read(raw)
    except SenselessError as error:
        raise CliError(f"{where} = {raw}: {error}") from error


def _nearest(name: str, known: Iterable[str]) -> str:
    from difflib import get_close_matches

    close = get_close_matches(name[:100], [*known, TOPIC_DEFAULTS, LISTENERS], n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """`[limits] x = 1` and `limits.x = 1` are the same."""
    flat: dict[str, Any] = {}
    for name, value in table.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat


def _table(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise CliError(f"{where} must be a table: [{TOPIC_DEFAULTS}]")
    return value


def _listener_tables(value: Any, path: str) -> tuple[Mapping[str, Any], ...]:
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise CliError(f"{path}: listeners must be tables: [[listeners]]")
    for table in value:
        for key in table:
            if key not in LISTENER_KEYS:
                raise CliError(f"unknown setting {path}: listeners.{key}{_nearest(key, LISTENER_KEYS)}")
    return tuple(value)


def _topic_text(raw: Any) -> str:
    if isinstance(raw, bool):
        return str(raw).lower()
    return ",".join(map(str, raw)) if isinstance(raw, list) else str(raw)


def _in_topic_names(told: Mapping[str, str]) -> Mapping[str, str]:
    """Kafka's brokers have other names for the same (`log.retention.hours`); of each source the later one wins."""
    from clarion.model.broker_defaults import in_topic_names
    from clarion.model.errors import KafkaError

    try:
        return in_topic_names(told) if told else {}
    except KafkaError as error:
        raise CliError(f"{TOPIC_DEFAULTS}: {error.message}") from error


def _check_topic_defaults(topic_defaults: Mapping[str, str], durability: str) -> None:
    from clarion.model.errors import KafkaError
    from clarion.model.topic_settings import TopicSettings, parse

    try:
        parse({"clarion.durability": durability, **topic_defaults}, TopicSettings())
    except KafkaError as error:
        raise CliError(f"{TOPIC_DEFAULTS}: {error.message}") from error
