"""From a TOML file, then `CLARION_*`, then flags, to what a broker is told. Whatever makes no sense is refused by name.

Which settings there are is declared where they belong (`clarion.broker.settings`); every road here takes all of them.

"log.retention.ms" = "1d"

[[listeners]]
listen = "127.0.0.1:9092"
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

from clarion.broker.config import BrokerConfig, Durability
from clarion.broker.settings import BROKER_SETTINGS, HTTP_AUTO, HTTP_OFF, OLD_NAMES, OWN_SETTINGS
from clarion.cli.errors import CliError, UsageError
from clarion.cli.flags import FLAGS, parameter
from clarion.cli.listeners import (
    LISTENER_KEYS,
    PORT_MAX,
    HostPort,
    check_advertised,
    listeners_of,
    parse_address,
    require_loopback,
)
from clarion.model.broker_defaults import BROKER_SYNONYMS, in_topic_names
from clarion.model.errors import KafkaError
from clarion.model.setting_texts import setting_hint, setting_text
from clarion.model.topic_settings import TOPIC_SETTINGS, TopicSettings, parse

TOPIC_DEFAULTS: Final = "topic_defaults"  # where topic settings stood before the broker's names for them were taken
LISTENERS: Final = "listeners"
_LOOPBACK: Final = "127.0.0.1"
_FIRST_HTTP_PORT: Final = 9644  # of broker 1
_ENV: Final = "CLARION_"
_OTHER_ENV: Final = frozenset(
    {"CLARION_BOOTSTRAP", "CLARION_COMPILED", "CLARION_CONFIG", "CLARION_PROFILE", "CLARION_SUPERVISED"}
)  # known, but not settings of a broker


class ServeSettings(NamedTuple):
    config: BrokerConfig
    renamed: Mapping[str, str]  # old names that were used, and what to say instead


class Given:
    """What one source says: texts by the settings' names, topic defaults by the topics', listeners as tables."""

    def __init__(self) -> None:
        self.own: dict[str, str] = {}
        self.topic_defaults: dict[str, str] = {}
        self.listeners: tuple[Mapping[str, Any], ...] = ()
        self.renamed: dict[str, str] = {}

    def take(self, where: str, name: str, raw: Any) -> None:
        """One setting, by its name or an old one; CliError with `where` if it cannot be."""
        new = _present_name(name)
        if new is None:
            raise CliError(f"{where.removesuffix(name).rstrip(' :')}: unknown setting {name}{_nearest(name)}")
        if new != name and new in BROKER_SETTINGS:
            self.renamed[name] = new
            raw = f"{raw}s" if "seconds" in name and _is_number(raw) else raw
        text = setting_text(new, raw)
        try:
            if new in OWN_SETTINGS:
                OWN_SETTINGS[new].declared.read(text)
                self.own[new] = text
            else:
                in_topic_names({new: text})
                self.topic_defaults[new] = text
        except KafkaError as error:
            hint = setting_hint(new, text)
            raise CliError(f"{where}: {error.message}{f'; {hint}' if hint else ''}") from error


def _is_number(raw: Any) -> bool:
    return not isinstance(raw, bool) and str(raw).replace(".", "", 1).isdecimal()


def env_name(name: str) -> str:
    """`log.retention.ms` is `CLARION_LOG_RETENTION_MS`, and `clarion.durability` is `CLARION_DURABILITY`."""
    return _ENV + name.removeprefix("clarion.").upper().replace(".", "_")


def load(config_file: str | None, environment: Mapping[str, str], flags: Mapping[str, Any]) -> ServeSettings:
    """Put the sources together, the later ones winning. `flags`: by parameter name, and `set` with NAME=VALUE texts."""
    path = config_file or environment.get("CLARION_CONFIG")
    together = _together([_from_file(path) if path else Given(), _from_environment(environment), _from_flags(flags)])
    return ServeSettings(_assemble(together), together.renamed)


class CheckedFile(NamedTuple):
    problems: tuple[str, ...]
    remarks: tuple[str, ...]  # what a broker starts with, and warns of
    renamed: Mapping[str, str]
    settings: int  # how many there are


def check_file(path: str) -> CheckedFile:
    """All that is wrong with a file, where `load` would complain of the first thing."""
    given, problems, remarks = Given(), [], []
    try:
        problems = [str(problem) for problem in _take_file(given, path)]
        remarks = [f"{path}: {remark}" for remark in _check_tls(_assemble(_together([given])))]
    except CliError as error:
        problems.append(str(error) if str(error).startswith(path) else f"{path}: {error}")
    count = len(given.own) + len(given.topic_defaults) + len(given.listeners)
    return CheckedFile(tuple(dict.fromkeys(problems)), tuple(dict.fromkeys(remarks)), given.renamed, count)


def _check_tls(config: BrokerConfig) -> Iterator[str]:
    """Whether certificates and keys belong together is known only to who loads them; comes out: what is unwise."""
    for listener in config.listeners:
        if listener.tls is None:
            continue
        from clarion.broker.tls import TlsFilesError, client_context, is_readable_by_everybody

        try:
            client_context(listener.tls)
        except TlsFilesError as error:
            raise CliError(f"TLS: {error}") from error
        if is_readable_by_everybody(listener.tls.key):
            yield f"everybody on this machine can read {listener.tls.key}: its mode should be 0600 or 0640"


def _together(sources: Iterable[Given]) -> Given:
    """The later ones win."""
    together = Given()
    for source in sources:
        together.own |= source.own
        together.topic_defaults |= in_topic_names(source.topic_defaults)
        together.renamed |= source.renamed
        if LISTENERS in source.own:
            together.listeners = ()  # somebody closer to the keyboard says where to listen
        together.listeners = source.listeners or together.listeners
    return together


def _assemble(given: Given) -> BrokerConfig:
    told = {name: given.own.get(name, str(own.declared.default)) for name, own in OWN_SETTINGS.items()}
    listeners = listeners_of(told, given.listeners)
    http = _http_address(told["clarion.http.listen"])
    topic_defaults = dict(given.topic_defaults)
    config = BrokerConfig(
        data_dir=os.path.abspath(os.path.expanduser(told["log.dirs"])),
        listeners=listeners,
        metrics_host=http.host if http else _LOOPBACK,
        metrics_port=http.port if http else None,
        durability=Durability(topic_defaults.pop("clarion.durability", Durability.FSYNC)),
        topic_defaults=topic_defaults,
    )
    for name, text in given.own.items():
        own = OWN_SETTINGS[name]
        config = own.changed(config, text) if own.with_value is not None else config
    if told["clarion.http.listen"] == HTTP_AUTO:
        config = replace(config, http_is_auto=True, metrics_port=_auto_port(config))
    _check_together(config)
    return config


def _http_address(text: str) -> HostPort | None:
    return None if text in (HTTP_AUTO, HTTP_OFF) else parse_address(text, "clarion.http.listen")


def _auto_port(config: BrokerConfig) -> int:
    """Whoever picks a free port for Kafka's protocol means one for HTTP as well."""
    port = _FIRST_HTTP_PORT + config.node_id - 1
    return port if config.listeners[0].port and _FIRST_HTTP_PORT <= port <= PORT_MAX else 0


def _check_together(config: BrokerConfig) -> None:
    """What no single setting can know."""
    metrics = [config.metrics_host] if config.metrics_port is not None else []
    if not config.is_insecure:
        require_loopback([each.host for each in config.listeners] + metrics)
    check_advertised(config.listeners)
    if config.cluster:
        _check_cluster(config.cluster)
    if config.groups.session_timeout_min_ms > config.groups.session_timeout_max_ms:
        raise CliError("group.min.session.timeout.ms is more than group.max.session.timeout.ms")
    try:
        parse(config.topic_defaults, TopicSettings())
    except KafkaError as error:
        raise CliError(error.message) from error


def _check_cluster(address: str) -> None:
    from clarion.cluster.opening import InvalidAddressError, check_address

    try:
        check_address(address)
    except InvalidAddressError as error:
        raise CliError(f"clarion.cluster = {address}: {error}") from error


# ------------------------------------------------------------------------------------------------ where they come from


def _from_file(path: str) -> Given:
    given = Given()
    for problem in _take_file(given, path):
        raise problem
    return given


def _take_file(given: Given, path: str) -> Iterator[CliError]:
    """What makes sense is taken; what does not comes out, one by one."""
    content = _toml(path)
    if _are_tables(content.get(LISTENERS)):
        given.listeners = tuple(content.pop(LISTENERS))
        yield from _strange_keys(given.listeners, path)
    for name, raw in _flat(content):
        try:
            given.take(f"{path}: {name}", name, raw)
        except CliError as error:
            yield error
    if given.listeners and LISTENERS in given.own:
        yield CliError(f"{path}: either listeners or [[listeners]], not both")


def _toml(path: str) -> dict[str, Any]:
    import tomllib

    try:
        with open(path, encoding="utf-8") as file:
            return tomllib.loads(file.read())
    except OSError as error:
        raise CliError(f"cannot read the settings in {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise CliError(f"{path} is not TOML: {error}") from error


def _from_environment(environment: Mapping[str, str]) -> Given:
    given = Given()
    said = [name for name in sorted(environment) if name.startswith(_ENV) and name not in _OTHER_ENV]
    names = _names_by_variable() if said else {}
    for variable in said:
        if variable not in names:
            raise CliError(f"the environment: unknown setting {variable}{_nearest_variable(variable, names)}")
        given.take(variable, names[variable], environment[variable])
    said_by_old_names = {variable: given.renamed.get(names[variable]) for variable in said}
    given.renamed = {
        variable: env_name(new) for variable, new in said_by_old_names.items() if new and env_name(new) != variable
    }
    return given


def _names_by_variable() -> dict[str, str]:
    """The old ones first: what is called the same today wins."""
    known = (*_topic_default_names(), *OLD_NAMES, *BROKER_SETTINGS)
    return {env_name(name).replace("TOPIC_DEFAULTS_", "TOPIC_DEFAULT_"): name for name in known}


def _topic_default_names() -> Iterator[str]:
    for name in (*BROKER_SYNONYMS, *TOPIC_SETTINGS):
        yield f"{TOPIC_DEFAULTS}.{name}"


def _from_flags(flags: Mapping[str, Any]) -> Given:
    """UsageError, not CliError: what was typed is wrong, as with an option that does not exist."""
    given = Given()
    try:
        _take_flags(given, flags)
    except CliError as error:
        raise UsageError(str(error)) from error
    return given


def _take_flags(given: Given, flags: Mapping[str, Any]) -> None:
    for text in flags.get("set") or ():
        name, equals, raw = text.partition("=")
        if not equals:
            raise CliError(f"--set {text}: write NAME=VALUE")
        given.take(f"--set {name}", name, raw)
    for flag, name in FLAGS.items():
        raw = flags.get(parameter(flag))
        if raw is not None and raw is not False and raw != []:
            given.take(flag, name, raw)


# ------------------------------------------------------------------------------------------------ names


def _present_name(name: str) -> str | None:
    """What a setting is called today; None if nobody knows it."""
    if name in BROKER_SETTINGS:
        return name
    if name.startswith(f"{TOPIC_DEFAULTS}."):
        return _broker_name(name.removeprefix(f"{TOPIC_DEFAULTS}."))
    return OLD_NAMES.get(name)


def _broker_name(topic_name: str) -> str | None:
    """`retention.ms` of a topic is `log.retention.ms` of a broker."""
    if topic_name in BROKER_SYNONYMS:
        return topic_name
    declared = TOPIC_SETTINGS.get(topic_name)
    if declared is None:
        return None
    return declared.synonyms[0] if declared.synonyms else topic_name


def _nearest(name: str) -> str:
    bare = name.removeprefix(f"{TOPIC_DEFAULTS}.")
    found = _closest(bare, (*BROKER_SETTINGS, *OLD_NAMES, *TOPIC_SETTINGS))
    return f" (did you mean {_present_name(found) or _broker_name(found) or found}?)" if found else ""


def _nearest_variable(variable: str, names: Mapping[str, str]) -> str:
    bare = {known.removeprefix(_ENV): name for known, name in names.items()}  # the prefix alone is no likeness
    found = _closest(variable.removeprefix(_ENV), bare)
    return f" (did you mean {env_name(_present_name(bare[found]) or bare[found])}?)" if found else ""


def _closest(name: str, known: Iterable[str]) -> str | None:
    from difflib import get_close_matches

    return next(iter(get_close_matches(name[:100], list(known), n=1)), None)


# ------------------------------------------------------------------------------------------------ TOML


def _flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """`[log.retention] ms = 1`, `log.retention.ms = 1` and `"log.retention.ms" = 1` are the same."""
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _are_tables(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(each, dict) for each in value)


def _strange_keys(tables: Iterable[Mapping[str, Any]], path: str) -> Iterator[CliError]:
    for key in dict.fromkeys(key for table in tables for key in table):
        if key not in LISTENER_KEYS:
            close = _closest(key, LISTENER_KEYS)
            hint = f" (did you mean {close}?)" if close else ""
            yield CliError(f"{path}: unknown setting listeners.{key}{hint}")
