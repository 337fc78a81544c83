"""How a bus reaches its brokers: addresses, TLS and patience, for confluent-kafka and for our own channel."""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from clarion.client.arguments import Duration, milliseconds
from clarion.client.errors import InvalidRequest, Unsupported
from clarion.client.library_errors import library_log
from clarion.net.channel import ChannelSettings

_PORT: Final = 9092
_OWN_NAMES: Final = {"bootstrap.servers": "the address", "client.id": "client_id"}


@dataclass(frozen=True, slots=True)
class BusSettings:
    bootstrap: str
    client_id: str = "clarion-python"
    timeout_ms: int = 30_000  # for an answer; a restart or an election takes a few seconds
    librdkafka: Mapping[str, Any] = field(default_factory=dict)  # by their own names; TLS too

    @classmethod
    def of(cls, bootstrap: str, client_id: str, timeout: Duration, librdkafka: Mapping[str, Any] | None) -> BusSettings:
        if not isinstance(bootstrap, str):
            raise TypeError(f"an address is a text such as '127.0.0.1:9092', not {type(bootstrap).__name__}")
        told = dict(librdkafka or {})
        for name, instead in _OWN_NAMES.items():
            if name in told:
                raise InvalidRequest(f"{name} is said with {instead}, not among the settings")
        if not client_id:
            raise InvalidRequest("client_id is empty")
        settings = cls(bootstrap, client_id, milliseconds(timeout, "timeout"), told)
        settings.addresses()
        return settings

    def addresses(self) -> list[tuple[str, int]]:
        return [_address(each) for each in self.bootstrap.split(",")]

    def for_librdkafka(self, more: Mapping[str, Any]) -> dict[str, Any]:
        """What the application has said comes last; the library's own lines go to a logger of ours."""
        return {
            "bootstrap.servers": self.bootstrap,
            "client.id": self.client_id,
            "logger": library_log(),
            **more,
            **self.librdkafka,
        }

    def channel_to(self, address: tuple[str, int], tls: ssl.SSLContext | None) -> ChannelSettings:
        seconds = self.timeout_ms / 1000
        return ChannelSettings(
            *address,
            self.client_id,
            tls=tls,
            connect_seconds=min(10.0, seconds),
            request_seconds=seconds,
        )

    def tls_context(self) -> ssl.SSLContext | None:
        """Of the settings that librdkafka has for it."""
        protocol = str(self.librdkafka.get("security.protocol", "plaintext")).lower()
        if protocol == "plaintext":
            return None
        if protocol != "ssl":
            raise Unsupported(f"security.protocol {protocol}: plaintext and ssl can be had")
        told = {name: str(value) for name, value in self.librdkafka.items()}
        authorities = told.get("ssl.ca.location")
        with _readable(authorities):
            context = ssl.create_default_context(cafile=authorities)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if told.get("ssl.endpoint.identification.algorithm", "https").lower() in ("", "none"):
            context.check_hostname = False
        if told.get("enable.ssl.certificate.verification", "true").lower() == "false":
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if "ssl.certificate.location" in told:
            certificate, key = told["ssl.certificate.location"], told.get("ssl.key.location")
            with _readable(certificate, key):
                context.load_cert_chain(certificate, key, told.get("ssl.key.password"))
        return context


@contextmanager
def _readable(*files: str | None) -> Iterator[None]:
    try:
        yield
    except OSError as error:  # of ssl too, which does not say which file it means
        named = " and ".join(each for each in files if each)
        raise InvalidRequest(f"settings: TLS cannot use {named}: {error.strerror or error}") from error


def _address(text: str) -> tuple[str, int]:
    """`host:port`, `[v6]:port` or `host`."""
    given = text.strip()
    host, colon, port = given.rpartition(":")
    if not colon or given.endswith("]"):
        host, port = given, str(_PORT)
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise InvalidRequest(f"{given!r} is no address; write host:port, for example 127.0.0.1:{_PORT}")
    return host.strip("[]"), int(port)
