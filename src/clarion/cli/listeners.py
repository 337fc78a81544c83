"""Where a broker listens: addresses, what clients are told, TLS; and nobody listens to the world by chance."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from clarion.broker.config import ListenerConfig, TlsConfig
from clarion.cli.errors import CliError
from clarion.cli.setting_kinds import HostPort, SenselessError
from clarion.cli.setting_table import BY_NAME

LISTENER_KEYS: Final = ("listen", "advertise", "tls_certificate", "tls_key", "tls_client_ca")


def listeners_of(values: Mapping[str, Any], tables: Sequence[Mapping[str, Any]]) -> tuple[ListenerConfig, ...]:
    """From `[[listeners]]` where there are any, else from `listen`, `advertise` and `tls_…`."""
    if tables:
        return tuple(_from_table(table, number) for number, table in enumerate(tables, 1))
    places = BY_NAME["listen"].kind.read(values["listen"])
    told = values["advertise"] or (None,) * len(places)
    if len(told) != len(places):
        raise CliError(f"{len(told)} × advertise for {len(places)} × listen: give one for each")
    tls = _tls(values, "tls")
    return tuple(_listener(place, advertise, tls) for place, advertise in zip(places, told, strict=True))


def check_reach(hosts: Iterable[str], insecure: bool) -> None:
    for host in hosts:
        if not insecure and not _is_loopback(host):
            raise CliError(
                f"listening on {host} lets everybody who can connect read, write and delete, for there is no "
                "authentication yet: say --insecure if that is meant"
            )


def check_told(listeners: Iterable[ListenerConfig]) -> None:
    """Clients come back to the address they are told; "every address" is none."""
    for each in listeners:
        if each.host in ("0.0.0.0", "::") and each.advertised_host is None:
            raise CliError(f"listening on {each.host}: say which address clients use, with --advertise HOST:PORT")


def _from_table(table: Mapping[str, Any], number: int) -> ListenerConfig:
    where = f"listeners[{number}]"
    if "listen" not in table:
        raise CliError(f'{where}: say where, with listen = "HOST:PORT"')
    place = _address(table["listen"], f"{where}.listen")
    advertise = _address(table["advertise"], f"{where}.advertise") if "advertise" in table else None
    return _listener(place, advertise, _tls({**dict.fromkeys(LISTENER_KEYS), **table}, where))


def _address(raw: Any, where: str) -> HostPort:
    try:
        found: HostPort = BY_NAME["metrics"].kind.read(raw)
    except SenselessError as error:
        raise CliError(f"{where} = {raw}: {error}") from error
    return found


def _listener(place: HostPort, advertise: HostPort | None, tls: TlsConfig | None) -> ListenerConfig:
    if advertise is None:
        return ListenerConfig(place.host, place.port, tls=tls)
    return ListenerConfig(place.host, place.port, advertise.host, advertise.port or None, tls)


def _tls(values: Mapping[str, Any], where: str) -> TlsConfig | None:
    certificate, key, client_ca = (values[name] for name in ("tls_certificate", "tls_key", "tls_client_ca"))
    if certificate is None and key is None and client_ca is None:
        return None
    if certificate is None or key is None:
        raise CliError(f"{where}: TLS needs both tls_certificate and tls_key")
    for path in (certificate, key, client_ca):
        if path is not None and not os.access(path, os.R_OK):
            raise CliError(f"{where}: cannot read {path}")
    return TlsConfig(certificate, key, client_ca)


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
        raise CliError(f"listen: there is no host called {host}") from error
    return all(ipaddress.ip_address(str(each)).is_loopback for each in found)
