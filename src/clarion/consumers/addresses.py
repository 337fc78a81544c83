"""Which addresses a webhook may be sent to: public ones, and of all others those in networks that the broker allows.

Who may create a subscription chooses where the broker connects to. Without this rule that would be a way into the
network in which the broker stands: its neighbours, its machine's own services, a cloud's metadata.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_NAT64: Final = (IPv6Network("64:ff9b::/96"), IPv6Network("64:ff9b:1::/48"))  # RFC 6052, 8215: IPv4 in the last bits
_IPV4_COMPATIBLE: Final = IPv6Network("::/96")  # long out of use, and understood by some systems still
_NEVER_PUBLIC: Final = tuple(
    map(
        ip_network,
        (
            "168.63.129.16/32",  # a public address by its number; in Azure each machine's own host answers there
            "192.0.0.0/24",  # of protocols, and in Oracle's cloud its metadata
            "192.88.99.0/24",  # whoever is the nearest relay
            "fec0::/10",  # a site's own, as it was before fc00::/7
            "3fff::/20",  # of books
            "2002::/16",  # by way of the nearest relay (6to4), of which none is left (RFC 7526)
        ),
    )
)  # some of which only some versions of Python take for public
_IPV4_BITS: Final = (1 << 32) - 1


def complaint_about_address(text: str, allowed: Iterable[Network] = ()) -> str | None:
    """Why nothing may be sent to this address, or None. `allowed`: networks to which it may although not public."""
    try:
        address = ip_address(text)
    except ValueError:
        return f"{text} is no address"
    networks = tuple(allowed)
    for meant in _meanings(address):
        if not _is_public(meant) and not any(_holds(network, meant) for network in networks):
            return f"{text} is not a public address"
    return None


def read_networks(texts: Iterable[str]) -> tuple[Network, ...]:
    """ValueError with the reason where one is none."""
    return tuple(ip_network(text.strip()) for text in texts)


def _meanings(address: Address) -> Iterator[Address]:
    """The address, and the IPv4 address to which a packet for it would go. Of a mapped one that is all it means."""
    if isinstance(address, IPv4Address):
        yield address
        return
    if address.ipv4_mapped is not None:
        yield address.ipv4_mapped
        return
    yield IPv6Address(int(address))  # without its scope
    if address.teredo is not None:
        yield from address.teredo
    if any(address in network for network in _NAT64) or (address in _IPV4_COMPATIBLE and int(address) > 1):
        yield IPv4Address(int(address) & _IPV4_BITS)


def _is_public(address: Address) -> bool:
    if any(_holds(network, address) for network in _NEVER_PUBLIC):
        return False
    return address.is_global and not address.is_multicast and not address.is_reserved


def _holds(network: Network, address: Address) -> bool:
    return network.version == address.version and address in network
