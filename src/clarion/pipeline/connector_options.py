"""What the connector's source and sink have in common: their options by name, read, checked and refused.

Spark hands options over in lower case. Names are Spark's Kafka connector's; those of the client (`ssl.ca.location`,
`kafka.request.timeout.ms` …) are librdkafka's or Kafka's and may be written with or without `kafka.` in front. What is
not known is refused by name: a misspelt option that is silently ignored would cost somebody a day. Options of Spark's
connector and of Kafka's clients that mean nothing here are ignored with a warning, so that moving over is one word.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from typing import Final, TypeVar

from clarion.pipeline.kafka.settings import ClientSettings, TlsSettings, address

log = logging.getLogger("clarion.pipeline")

T = TypeVar("T")
U = TypeVar("U")


class OptionError(ValueError):
    """An option that is unknown, missing, or makes no sense."""


# What Spark itself adds, or keeps for itself.
SPARKS_OWN: Final = frozenset(
    {
        "checkpointlocation", "queryname", "asyncprogresstrackingenabled",
        "asyncprogresstrackingcheckpointintervalms", "_asyncprogresstrackingoverridesinksupportcheck",
    }
)  # fmt: skip

CLIENT_NAMES: Final = (
    "bootstrap.servers", "client.id", "security.protocol", "ssl.ca.location", "ssl.certificate.location",
    "ssl.key.location", "ssl.key.password", "ssl.truststore.location", "ssl.truststore.type", "ssl.keystore.location",
    "ssl.keystore.type", "ssl.endpoint.identification.algorithm", "request.timeout.ms", "default.api.timeout.ms",
    "socket.connection.setup.timeout.ms", "retry.backoff.ms", "retry.backoff.max.ms",
)  # fmt: skip


# Settings of Spark's connector and of Kafka's clients that may stand in a query that moves over, and that mean nothing
# here: what they tune does not exist, or takes care of itself.
IGNORED: Final = frozenset(
    {
        "groupIdPrefix", "fetchOffset.numRetries", "fetchOffset.retryIntervalMs", "kafkaConsumer.pollTimeoutMs",
        "allow.auto.create.topics", "client.dns.lookup", "client.rack", "connections.max.idle.ms",
        "exclude.internal.topics", "fetch.min.bytes", "group.instance.id", "heartbeat.interval.ms",
        "max.partition.fetch.bytes", "max.poll.interval.ms", "max.poll.records", "metric.reporters",
        "metrics.num.samples", "metrics.recording.level", "metrics.sample.window.ms", "partition.assignment.strategy",
        "receive.buffer.bytes", "reconnect.backoff.max.ms", "reconnect.backoff.ms", "send.buffer.bytes",
        "session.timeout.ms", "socket.connection.setup.timeout.max.ms", "buffer.memory", "linger.ms", "max.block.ms",
        "max.in.flight.requests.per.connection", "partitioner.ignore.keys", "retries",
    }
)  # fmt: skip
# What would change the meaning of a query, and cannot be had; Spark's connector refuses most of them, too.
REFUSED: Final = {
    "auto.offset.reset": "use startingOffsets",
    "enable.auto.commit": "the checkpoint says how far a query has come; groupId shows it to others",
    "interceptor.classes": "there is no Java here",
    "key.deserializer": "keys are binary; cast them in the query",
    "value.deserializer": "values are binary; cast them in the query",
    "key.serializer": "keys are string or binary",
    "value.serializer": "values are string or binary",
    "partitioner.class": "there is no Java here; a column `partition` chooses",
    "transactional.id": "writing is at least once",
    "sasl.mechanism": "only TLS is supported",
    "sasl.jaas.config": "only TLS is supported",
    "sasl.kerberos.service.name": "only TLS is supported",
}


class Options:
    """Options as they were given, each read by its one canonical name."""

    def __init__(self, given: Mapping[str, str], own: Iterable[str], client: Iterable[str]) -> None:
        client = (*CLIENT_NAMES, *client)
        spellings = {name.lower(): name for name in own}
        spellings |= {prefix + name: name for name in client for prefix in ("", "kafka.")}
        self._values: dict[str, str] = {}
        for key, value in given.items():
            name = spellings.get(key.lower())
            if name is not None:
                self._take(name, key, value)
            elif key.lower() not in SPARKS_OWN:
                _let_pass(key, (*own, *client))

    def _take(self, name: str, key: str, value: str) -> None:
        if self._values.setdefault(name, value) != value:
            raise OptionError(f"option {key}: {name} is given twice, with and without `kafka.`, and they differ")

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def text(self, name: str, default: T) -> str | T:
        return self._values.get(name, default)

    def required(self, name: str) -> str:
        if name not in self._values:
            raise OptionError(f"option {name} is missing")
        return self._values[name]

    def read(self, name: str, read: Callable[[str], T], default: U) -> T | U:
        """The option read by a function that raises ValueError with words for people."""
        if name not in self._values:
            return default
        try:
            return read(self._values[name])
        except ValueError as error:
            raise OptionError(f"option {name}: {error}") from None

    def number(self, name: str, default: T, *, least: int = 1) -> int | T:
        return self.read(name, lambda text: _whole_number(text, least), default)

    def boolean(self, name: str, default: bool) -> bool:
        return self.read(name, _boolean, default)

    def choice(self, name: str, choices: Mapping[str, T], default: T) -> T:
        return self.read(name, lambda text: _choice(text, choices), default)


def _let_pass(key: str, known: Iterable[str]) -> None:
    """An option that is none of ours: ignored with a warning, or refused."""
    plain = key.lower().removeprefix("kafka.") if key.lower() not in _IGNORED else key.lower()
    if plain in _IGNORED:
        if plain not in _warned:
            log.warning("option %s means nothing here and is ignored", key)
        _warned.add(plain)
        return
    if plain in REFUSED:
        raise OptionError(f"option {key} cannot be had: {REFUSED[plain]}")
    raise OptionError(_unknown(key, known))


_IGNORED: Final = frozenset(name.lower() for name in IGNORED)
_warned: set[str] = set()  # once per process is enough


def _unknown(key: str, known: Iterable[str]) -> str:
    by_lower = {name.lower(): name for name in known}
    plain = key.lower().removeprefix("kafka.")
    near = get_close_matches(plain, by_lower, n=1, cutoff=0.6)
    return f"unknown option {key}" + (f"; did you mean {by_lower[near[0]]}?" if near else "")


def _whole_number(text: str, least: int) -> int:
    try:
        number = int(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a whole number") from None
    if number < least:
        raise ValueError(f"{number} is less than {least}")
    return number


def _boolean(text: str) -> bool:
    return _choice(text, {"true": True, "false": False})


def _choice(text: str, choices: Mapping[str, T]) -> T:
    try:
        return choices[text.strip().lower()]
    except KeyError:
        raise ValueError(f"{text!r} is none of {', '.join(choices)}") from None


# ------------------------------------------------------------------------------------------------ the client


def connection_settings(given: Mapping[str, str]) -> ClientSettings:
    """Of options of which only those about the connection are looked at."""
    return client_settings(Options({name: value for name, value in given.items() if "." in name}, (), ()))


def client_settings(options: Options) -> ClientSettings:
    servers = tuple(part.strip() for part in options.required("bootstrap.servers").split(",") if part.strip())
    if not servers:
        raise OptionError("option bootstrap.servers is empty")
    for server in servers:
        try:
            address(server)
        except ValueError as error:
            raise OptionError(f"option {error}") from None
    defaults = ClientSettings(servers)
    return ClientSettings(
        bootstrap_servers=servers,
        client_id=options.text("client.id", defaults.client_id),
        tls=_tls(options),
        request_timeout_ms=options.number("request.timeout.ms", defaults.request_timeout_ms),
        connect_timeout_ms=options.number("socket.connection.setup.timeout.ms", defaults.connect_timeout_ms),
        api_timeout_ms=options.number("default.api.timeout.ms", defaults.api_timeout_ms),
        retry_backoff_ms=options.number("retry.backoff.ms", defaults.retry_backoff_ms),
        retry_backoff_max_ms=options.number("retry.backoff.max.ms", defaults.retry_backoff_max_ms),
    )


def _tls(options: Options) -> TlsSettings | None:
    protocol = options.text("security.protocol", "plaintext").lower()
    if protocol == "plaintext":
        return None
    if protocol != "ssl":
        raise OptionError(f"option security.protocol: {protocol.upper()} is not supported (PLAINTEXT and SSL are)")
    for store in ("ssl.truststore", "ssl.keystore"):
        if f"{store}.location" in options and options.text(f"{store}.type", "JKS").upper() != "PEM":
            raise OptionError(f"option {store}.location: only PEM files can be read; set {store}.type to PEM")
    keystore = options.text("ssl.keystore.location", None)
    return TlsSettings(
        ca_file=options.text("ssl.ca.location", None) or options.text("ssl.truststore.location", None),
        certificate_file=options.text("ssl.certificate.location", None) or keystore,
        key_file=options.text("ssl.key.location", None) or keystore,
        key_password=options.text("ssl.key.password", None),
        checks_host_name=options.text("ssl.endpoint.identification.algorithm", "https").lower() not in ("", "none"),
    )
