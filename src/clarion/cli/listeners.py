"""Where a broker listens: addresses, what clients are told, TLS; and nobody listens to the world by chance."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from clarion.broker.config import ListenerConfig, TlsConfig
from clarion.cli.errors import CliError, UsageError

LISTENER_KEYS: Final = ("listen", "advertise", "tls_certificate", "tls_key", "tls_client_ca")


PORT_MAX: Final = 65_535
_SCHEMES: Final = ("PLAINTEXT://", "SSL://")  # before an address, as Kafka writes it


class HostPort(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str, where: str) -> HostPort:
    host, colon, port = text.strip().rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not (colon and host and port.isascii() and port.isdigit() and len(port) < 6 and int(port) <= PORT_MAX):
        raise UsageError(f"{where} {text}: write HOST:PORT, e.g. 127.0.0.1:9092, with a port up to {PORT_MAX}")
    return HostPort(host, int(port))


def listeners_of(told: Mapping[str, str], tables: Sequence[Mapping[str, Any]]) -> tuple[ListenerConfig, ...]:
    """From `[[listeners]]` where there are any, else from `listeners`, `advertised.listeners` and `clarion.tls.…`."""
    if tables:
        return tuple(_from_table(table, number) for number, table in enumerate(tables, 1))
    places = _places(told, "listeners")
    advertised: list[HostPort | None] = [place for _, place in _places(told, "advertised.listeners")]
    if advertised and len(advertised) != len(places):
        raise CliError(f"{len(advertised)} × advertised.listeners for {len(places)} × listeners: give one for each")
    paths = {key: told[f"clarion.tls.{key}"] or None for key in ("certificate", "key", "client.ca")}
    tls = _tls(paths["certificate"], paths["key"], paths["client.ca"], "clarion.tls")
    return tuple(
        _listener(place, other, _tls_of(scheme, tls))
        for (scheme, place), other in zip(places, advertised or [None] * len(places), strict=True)
    )


def _places(told: Mapping[str, str], name: str) -> list[tuple[str, HostPort]]:
    """Addresses, each with what Kafka says before it, if anything."""
    found = []
    for each in filter(None, told[name].split(",")):
        scheme = next((scheme for scheme in _SCHEMES if each.strip().upper().startswith(scheme)), "")
        found.append((scheme, parse_address(each.strip()[len(scheme) :], name)))
    return found


def _tls_of(scheme: str, tls: TlsConfig | None) -> TlsConfig | None:
    """An address that does not say speaks TLS where there is a certificate."""
    if scheme == "SSL://" and tls is None:
        raise CliError("listeners: SSL:// needs clarion.tls.certificate and clarion.tls.key")
    return None if scheme == "PLAINTEXT://" else tls


def require_loopback(hosts: Iterable[str]) -> None:
    """For whoever has not said --insecure."""
    for host in hosts:
        if not _is_loopback(host):
            raise CliError(
                f"listening on {host} lets everybody who can connect read, write and delete, for there is no "
                "authentication yet: say --insecure if that is meant"
            )


def check_advertised(listeners: Iterable[ListenerConfig]) -> None:
    """Clients come back to the address they are told; "every address" is none."""
    for each in listeners:
        if each.host in ("0.0.0.0", "::") and each.advertised_host is None:
            raise CliError(f"listening on {each.host}: say which address clients use, with --advertise HOST:PORT")


def _from_table(table: Mapping[str, Any], number: int) -> ListenerConfig:
    where = f"listeners[{number}]"
    if "listen" not in table:
        raise CliError(f'{where}: say where, with listen = "HOST:PORT"')
    place = parse_address(str(table["listen"]), f"{where}.listen")
    advertise = parse_address(str(table["advertise"]), f"{where}.advertise") if "advertise" in table else None
    certificate, key, client_ca = (table.get(name) for name in ("tls_certificate", "tls_key", "tls_client_ca"))
    return _listener(place, advertise, _tls(certificate, key, client_ca, where))


def _listener(place: HostPort, advertise: HostPort | None, tls: TlsConfig | None) -> ListenerConfig:
    if advertise is None:
        return ListenerConfig(place.host, place.port, tls=tls)
    return ListenerConfig(place.host, place.port, advertise.host, advertise.port or None, tls)


def _tls(certificate: str | None, key: str | None, client_ca: str | None, where: str) -> TlsConfig | None:
    if certificate is None and key is None and client_ca is None:
        return None
    if certificate is None or key is None:
        raise UsageError(_needs(where, certificate, key))
    for path in (certificate, key, client_ca):
        if path is not None and not os.access(path, os.R_OK):
            raise CliError(f"{where}: cannot read {path}")
    return TlsConfig(certificate, key, client_ca)


def _needs(where: str, certificate: str | None, key: str | None) -> str:
    """In the words it was given in: as flags, or as keys of a table."""
    given = "tls-certificate" if certificate else "tls-key" if key else "tls-client-ca"
    missing = "tls-key" if certificate else "tls-certificate"
    if where == "clarion.tls":
        return f"--{given} also needs --{missing}"
    return f"{where}: {given} also needs {missing}".replace("-", "_")


def _is_loopback(host: str) -> bool:
    if host == "127.0.0.1":  # what nearly everybody says, known without the module
        return True
    import ipaddress

    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        pass
    try:
        found = {entry[4][0] for entry in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    except (OSError, UnicodeError) as error:
        raise CliError(f"listeners: there is no host called {host}") from error
    return all(ipaddress.ip_address(str(each)).is_loopback for each in found)
