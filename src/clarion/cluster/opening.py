"""The store of a cluster by its address, as people write it.

file:PATH                               brokers on one machine: a folder that they share
etcd://HOST:PORT,HOST:PORT/NAME         etcd; NAME tells several clusters in one etcd apart
etcds://USER:PASSWORD@HOST:PORT         with TLS, and a password where etcd asks for one
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, NamedTuple

from clarion.cluster.coordination import CoordinationStore
from clarion.world import RealDisk, make_lasting_folder

_FILE: Final = "file:"
_ETCD: Final = re.compile(
    r"(?P<kind>etcds?)://(?:(?P<user>[^:@/]+):(?P<password>[^@/]*)@)?(?P<places>[^/@]+)(?:/(?P<name>[\w.-]*))?"
)
_PLACE: Final = re.compile(r"(?P<host>\[[0-9a-fA-F:]+\]|[^:\s]+)(?::(?P<port>\d{1,5}))?")
_ETCD_PORT: Final = 2379
_NAME: Final = "clarion"


class InvalidAddressError(Exception):
    """It is neither of the forms above."""

    def __init__(self) -> None:
        super().__init__("write file:PATH or etcd://HOST:PORT,HOST:PORT")


class EtcdPlaces(NamedTuple):
    endpoints: tuple[tuple[str, int], ...]
    name: str
    is_tls: bool
    user: str
    password: str


def folder_of(address: str) -> str | None:
    """The folder that brokers on one machine share; None if it is not that kind of address."""
    return address.removeprefix(_FILE) if address.startswith(_FILE) and len(address) > len(_FILE) else None


def places_of(address: str) -> EtcdPlaces:
    found = _ETCD.fullmatch(address)
    if found is None:
        raise InvalidAddressError
    endpoints = tuple(_place(one) for one in found["places"].split(","))
    user, password = found["user"] or "", found["password"] or ""
    return EtcdPlaces(endpoints, found["name"] or _NAME, found["kind"] == "etcds", user, password)


def check_address(address: str) -> None:
    """InvalidAddressError if nothing can be opened by it."""
    if folder_of(address) is None:
        places_of(address)


async def open_store(address: str, on_failure: Callable[[Exception], None]) -> CoordinationStore:
    folder = folder_of(address)
    if folder is not None:
        from clarion.cluster.local_store import LocalStore

        make_lasting_folder(RealDisk(), folder)
        return await LocalStore.open(folder, on_failure)
    return await _open_etcd(places_of(address))


async def _open_etcd(places: EtcdPlaces) -> CoordinationStore:
    import ssl

    from clarion.cluster.etcd_client import EtcdAddress
    from clarion.cluster.etcd_store import EtcdStore

    tls = ssl.create_default_context() if places.is_tls else None
    return await EtcdStore.open(EtcdAddress(places.endpoints, tls, places.user, places.password), f"{places.name}/")


def _place(text: str) -> tuple[str, int]:
    found = _PLACE.fullmatch(text)
    if found is None:
        raise InvalidAddressError
    return found["host"].strip("[]"), int(found["port"] or _ETCD_PORT)
