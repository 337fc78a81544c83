"""Every setting of a broker by name, as `clarion.broker.config`, the groups and the topics declare them.

`OWN_SETTINGS` are the broker's own: how each is read from a configuration, and how one is changed. What topics inherit
from a broker (`log.retention.ms`) is in `clarion.model.broker_defaults`. Command line, file, environment,
DescribeConfigs, alteration at run time and the documentation know of a setting from here, and from nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any, Final, NamedTuple

from clarion.broker.config import BrokerConfig, ListenerConfig
from clarion.broker.limits import Limits
from clarion.groups.config import GroupConfig
from clarion.model.broker_defaults import BROKER_SYNONYMS, DYNAMIC_DEFAULTS
from clarion.model.setting_kinds import Kind, Rule, Setting, Value, settings_of

HTTP_AUTO: Final = "auto"
HTTP_OFF: Final = "off"


class OwnSetting(NamedTuple):
    declared: Setting
    value: Callable[[BrokerConfig], Value]
    with_value: Callable[[BrokerConfig, Value], BrokerConfig] | None
    """None: `clarion.cli.listeners` puts several together."""

    def changed(self, config: BrokerConfig, text: str) -> BrokerConfig:
        """The configuration with this setting as the text says, or INVALID_CONFIG."""
        assert self.with_value is not None
        return self.with_value(config, self.declared.read(text))


def _own_field(declared: Setting) -> OwnSetting:
    name = declared.field_name

    def with_value(config: BrokerConfig, value: Value) -> BrokerConfig:
        changes: dict[str, Any] = {name: declared.in_field(value)}
        return replace(config, **changes)

    return OwnSetting(declared, lambda config: declared.of_field(getattr(config, name)), with_value)


def _field_of(part: str, declared: Setting) -> OwnSetting:
    """A field of `config.limits` or `config.groups`."""
    name = declared.field_name

    def with_value(config: BrokerConfig, value: Value) -> BrokerConfig:
        changes: dict[str, Any] = {name: declared.in_field(value)}
        return replace(config, **{part: replace(getattr(config, part), **changes)})

    return OwnSetting(declared, lambda config: declared.of_field(getattr(getattr(config, part), name)), with_value)


def _composed(
    name: str, default: str, doc: str, old_name: str, words: str, value: Callable[[BrokerConfig], str] | None
) -> OwnSetting:
    """A text; without `value` it is nobody's business, as the paths of keys and certificates are."""

    def complaint(given: Value) -> str | None:
        is_given = given or not default
        return None if is_given and isinstance(given, str) and "\0" not in given else "Value must not be empty"

    declared = Setting(
        name=name,
        kind=Kind.STRING,
        default=default,
        doc=doc,
        check=Rule(words, complaint),
        old_names=(old_name, f"clarion.{old_name}"),
        is_sensitive=value is None,
    )
    return OwnSetting(declared, value or (lambda config: ""), None)


def listener_protocol(listener: ListenerConfig) -> str:
    return "PLAINTEXT" if listener.tls is None else "SSL"


def _listeners(config: BrokerConfig) -> str:
    return ",".join(f"{listener_protocol(one)}://{host_port(one.host, one.port)}" for one in config.listeners)


def _advertised(config: BrokerConfig) -> str:
    told = [host_port(one.advertised_host or one.host, one.advertised_port or one.port) for one in config.listeners]
    return ",".join(f"{listener_protocol(one)}://{each}" for one, each in zip(config.listeners, told, strict=True))


def _http(config: BrokerConfig) -> str:
    if config.http_is_auto:
        return HTTP_AUTO
    return HTTP_OFF if config.metrics_port is None else host_port(config.metrics_host, config.metrics_port)


def host_port(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


_COMPOSED: Final = (
    _composed(
        "log.dirs",
        "clarion-data",
        "Where the messages are kept: one folder. Made if missing; open to its owner alone.",
        "data_dir",
        "a path",
        lambda config: config.data_dir,
    ),
    _composed(
        "listeners",
        "127.0.0.1:9092",
        "Where clients connect; port 0 picks a free one. Beyond loopback only with `clarion.insecure`.",
        "listen",
        "`HOST:PORT`, or several",
        _listeners,
    ),
    _composed(
        "advertised.listeners",
        "",
        "What clients are told to connect to, one for each of `listeners`; port 0 is the listening port. Where not "
        "given: the listening address.",
        "advertise",
        "`HOST:PORT`, or several",
        _advertised,
    ),
    _composed(
        "clarion.http.listen",
        HTTP_AUTO,
        "Where HTTP is served: `/metrics`, `/healthz`, `/readyz` and the API. `auto`: on loopback, port 9644 of broker "
        "1, 9645 of broker 2 and so on, or a free one where that is taken or the first of `listeners` has port 0.",
        "metrics",
        "`HOST:PORT` or `auto` or `off`",
        _http,
    ),
    _composed(
        "clarion.tls.certificate",
        "",
        "The certificate with its chain, as PEM. With it, every one of `listeners` speaks TLS.",
        "tls_certificate",
        "a path",
        None,
    ),
    _composed(
        "clarion.tls.key",
        "",
        "The certificate's private key, as PEM.",
        "tls_key",
        "a path",
        None,
    ),
    _composed(
        "clarion.tls.client.ca",
        "",
        "An authority's certificate, as PEM. With it, clients must show a certificate that it signed.",
        "tls_client_ca",
        "a path",
        None,
    ),
)
"""What several fields of a configuration hold together."""


def _by_name(*settings: OwnSetting) -> Mapping[str, OwnSetting]:
    return {one.declared.name: one for one in sorted(settings, key=lambda one: one.declared.name)}


OWN_SETTINGS: Final[Mapping[str, OwnSetting]] = _by_name(
    *_COMPOSED,
    *(_own_field(declared) for declared in settings_of(BrokerConfig).values()),
    *(_field_of("groups", declared) for declared in settings_of(GroupConfig).values()),
    *(_field_of("limits", declared) for declared in settings_of(Limits).values()),
)
BROKER_SETTINGS: Final[Mapping[str, Setting]] = {
    **{name: own.declared for name, own in OWN_SETTINGS.items()},
    **{
        name: declared._replace(name=name, is_dynamic=name in DYNAMIC_DEFAULTS)
        for name, declared in BROKER_SYNONYMS.items()
    },
}
"""All that can be said to a broker: its own, and what topics inherit."""
OLD_NAMES: Final[Mapping[str, str]] = {
    **{name.replace(".", "_"): name for name in OWN_SETTINGS if "." in name},
    **{old: name for name, declared in BROKER_SETTINGS.items() for old in declared.old_names},
}
"""What settings were called before, or are called by who writes `_` for `.`; taken with a warning."""


def broker_config(data_dir: str, **values: Any) -> BrokerConfig:
    """A configuration from Python: settings by name with `_` for `.`, or fields of BrokerConfig.

    broker_config("data", num_partitions=3, group_initial_rebalance_delay_ms=0)
    """
    config = BrokerConfig(data_dir, **{name: value for name, value in values.items() if name in _FIELDS})
    for name in [name for name in values if name not in _FIELDS]:
        own = _IN_PYTHON.get(name)
        if own is None or own.with_value is None:
            raise TypeError(f"there is no setting {name!r}; there are {', '.join(sorted(PYTHON_NAMES))}")
        config = own.with_value(config, values[name])
    return config


_FIELDS: Final = frozenset(one.name for one in fields(BrokerConfig))
_IN_PYTHON: Final[Mapping[str, OwnSetting]] = {
    name.replace(".", "_"): own for name, own in OWN_SETTINGS.items() if own.with_value is not None
}
PYTHON_NAMES: Final = _FIELDS | _IN_PYTHON.keys()
