"""How a command reaches a broker: the bootstrap address, the client libraries, and their errors in plain words."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from clarion.cli import completion
from clarion.cli.errors import CliError, UsageError

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Producer
    from confluent_kafka.admin import AdminClient

    from clarion.cli.profiles import Profile
    from clarion.pipeline.kafka.settings import ClientSettings

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
REQUEST_SECONDS_MAX = 15.0  # an admin call that takes longer hangs; nobody waits for a prompt longer than this
_LISTEN_SECONDS = 0.2  # how soon the reason of a failed TLS handshake is noticed

BootstrapOption = Annotated[
    str | None,
    typer.Option("--bootstrap", "-b", metavar="HOST:PORT[,…]", help="The broker to talk to.", show_default=False),
]
ProfileOption = Annotated[
    str | None,
    typer.Option(
        "--profile",
        metavar="NAME",
        help="The connection profile to use (`clarion profile`).",
        autocompletion=completion.profile_names,
    ),
]
ClientOption = Annotated[
    list[str] | None,
    typer.Option("-X", metavar="NAME=VALUE", help="A librdkafka setting, e.g. ssl.ca.location=ca.pem; repeatable."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]

T = TypeVar("T")


class Link:
    """A broker's address and the settings that every client of this command shares."""

    def __init__(self, bootstrap: str, settings: Mapping[str, str]) -> None:
        self.bootstrap = bootstrap
        self.settings = {**settings}
        self._admin: AdminClient | None = None
        self._tls_trouble = ""
        self._is_checked = False

    @property
    def protocol(self) -> str:
        return self.settings.get("security.protocol", "plaintext").lower()

    @property
    def _wants_tls(self) -> bool:
        return "ssl" in self.protocol

    @classmethod
    def of(cls, context: typer.Context, bootstrap: str | None) -> Link:
        """The link a command was asked to use.

        The address: --bootstrap, --profile, CLARION_BOOTSTRAP, CLARION_PROFILE, the profile in use, the default. Other
        settings come from the profile that was named, or that the address is from; -X comes on top.
        """
        common: Mapping[str, Any] = context.find_root().obj or {}
        said = bootstrap or common.get("bootstrap")
        variable = os.environ.get("CLARION_BOOTSTRAP")
        profile = _profile(common.get("profile"), is_address_known=bool(said or variable))
        address = said or (profile.bootstrap if common.get("profile") and profile else None) or variable
        if address is None:
            address = profile.bootstrap if profile else DEFAULT_BOOTSTRAP
        return cls(address, {**(profile.settings if profile else {}), **client_settings(common.get("client"))})

    def places(self) -> list[tuple[str, int]]:
        return [_host_and_port(each) for each in self.bootstrap.split(",")]

    def check(self) -> None:
        """Fail at once and clearly where nothing listens; the client libraries would retry in silence."""
        if self._is_checked:
            return
        from clarion.cli.probe import trouble_with

        troubles = []
        for host, port in self.places():
            if not (trouble := trouble_with(host, port, with_tls=self._wants_tls)):
                self._is_checked = True
                return
            troubles.append(trouble)
        raise CliError("; ".join(troubles))

    def admin(self) -> AdminClient:
        from confluent_kafka.admin import AdminClient

        self.check()
        with plain_errors(self):
            self._admin = AdminClient(self._config({"error_cb": self._hear}))
            return self._admin

    def own_client(self, timeout_seconds: float) -> ClientSettings | None:
        """For Clarion's own client, which asks what the library cannot; None with SASL, which it does not speak."""
        from clarion.pipeline.connector_options import CLIENT_NAMES, OptionError, Options, client_settings

        told: Mapping[str, str] = {
            "bootstrap.servers": self.bootstrap,
            "client.id": "clarion-cli",
            "request.timeout.ms": str(round(timeout_seconds * 1000)),
            **{name: value for name, value in self.settings.items() if name in CLIENT_NAMES},
        }
        try:
            return client_settings(Options(told, (), ()))
        except OptionError:
            return None

    def tls_trouble(self) -> str:
        """Why TLS did not come about, in the client library's words; empty if it was not that."""
        if self._admin is not None:
            self._admin.poll(0)  # only now are its callbacks called
        return self._tls_trouble

    def _hear(self, error: Any) -> None:
        from confluent_kafka import KafkaError

        if error.code() == KafkaError._SSL:
            self._tls_trouble = _without_places(error.str())

    def producer(self, settings: Mapping[str, Any]) -> Producer:
        from confluent_kafka import Producer

        self.check()
        with plain_errors(self):
            # Kafka's own rule for keys, which librdkafka has another one for: a key has one partition, whoever writes.
            return Producer(self._config({"partitioner": "murmur2_random", **settings}))

    def consumer(self, settings: Mapping[str, Any]) -> Consumer:
        from confluent_kafka import Consumer

        self.check()
        with plain_errors(self):
            return Consumer(self._config(settings))

    def _config(self, settings: Mapping[str, Any] | None = None) -> dict[str, Any]:
        quiet = logging.getLogger("clarion.librdkafka")
        quiet.propagate = False
        quiet.addHandler(logging.NullHandler())
        return {
            "bootstrap.servers": self.bootstrap,
            "client.id": "clarion-cli",
            "logger": quiet,
            **(settings or {}),
            **self.settings,
        }


def admin_api() -> Any:
    """confluent-kafka's admin module; untyped, for it does not declare what it exports."""
    import confluent_kafka.admin

    return confluent_kafka.admin


def poll_available(consumer: Consumer, most: int, seconds: float) -> list[Any]:
    """Wait for one message, then take what has come with it. (`consume` alone would wait for `most` of them.)"""
    first = consumer.poll(seconds)
    return [] if first is None else [first, *consumer.consume(most - 1, 0)]


def result_of(future: Future[T], link: Link, what: str) -> T:
    """An admin call's answer, or one clear line that begins with what was attempted."""
    deadline = time.monotonic() + REQUEST_SECONDS_MAX
    with plain_errors(link, what):
        while True:
            try:
                return future.result(_LISTEN_SECONDS)
            except TimeoutError:
                # The library goes on trying where TLS failed; it will not come about by itself.
                if future.done() or link.tls_trouble() or time.monotonic() > deadline:
                    raise


@contextmanager
def plain_errors(link: Link, what: str = "") -> Iterator[None]:
    """Turn the client library's errors into words for the person at the keyboard."""
    from confluent_kafka import KafkaError, KafkaException

    try:
        yield
    except KafkaException as error:
        if error.args[0].code() == KafkaError._INVALID_ARG and not what:  # of a client that was to be made
            raise UsageError(f"-X, or the profile: {explain(error.args[0], link)}") from error
        raise CliError(_sentence(what, explain(error.args[0], link))) from error
    except TimeoutError as error:
        why = _no_tls(link) or f"no answer from {link.bootstrap} in time; {_question(link)}"
        raise CliError(_sentence(what, why)) from error


def explain(error: Any, link: Link) -> str:
    """What a `confluent_kafka.KafkaError` means here."""
    from confluent_kafka import KafkaError

    if error.code() in (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE):
        if no_tls := _no_tls(link):
            return no_tls
        return f"lost or refused connection to {link.bootstrap}; {_question(link)}"
    if error.code() in (KafkaError._TIMED_OUT, KafkaError._TIMED_OUT_QUEUE, KafkaError._MSG_TIMED_OUT):
        return f"no answer from {link.bootstrap} in time; {_question(link)}"
    return " ".join(str(error.str()).removeprefix("Broker: ").split())


def _question(link: Link) -> str:
    tls = "" if "security.protocol" in link.settings else " Does it want TLS (-X security.protocol=ssl)?"
    return f"is it a Kafka listener, and up?{tls}"


def _no_tls(link: Link) -> str:
    trouble = link.tls_trouble()
    return trouble and f"no TLS with {link.bootstrap}: {trouble}"


def _without_places(text: str) -> str:
    """Without the address in front and the time and state at the end, which say nothing to the person who reads it."""
    return " ".join(text.partition("/bootstrap: ")[2].partition(" (after ")[0].split()) or text


def _sentence(what: str, why: str) -> str:
    return f"{what}: {why}" if what else why


def client_settings(told: Sequence[str] | None) -> dict[str, str]:
    """`-X NAME=VALUE`, each."""
    return dict(_pair(each) for each in told or ())


def check_addresses(bootstrap: str) -> None:
    for each in bootstrap.split(","):
        _host_and_port(each)


def _profile(named: str | None, *, is_address_known: bool) -> Profile | None:
    """The one that was named; else, where nobody has said an address, the environment's or the one in use."""
    if named is None and is_address_known:
        return None
    from clarion.cli.profiles import ENVIRONMENT, profiles_file, read_profiles

    path = profiles_file()
    name = named or os.environ.get(ENVIRONMENT)
    if name is None and not path.exists():
        return None
    known = read_profiles(path)
    name = name or known.current
    return None if name is None else known.named(name)


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise UsageError(f"-X {text}: write NAME=VALUE")
    return name, value


def _host_and_port(address: str) -> tuple[str, int]:
    host, colon, port = address.strip().rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise UsageError(f"bootstrap address {address.strip()!r}: write HOST:PORT, for example {DEFAULT_BOOTSTRAP}")
    return host.strip("[]"), int(port)
