"""Where webhooks may go: public addresses, however they are written, and what the broker allows besides."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clarion.consumers.addresses import complaint_about_address, read_networks


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "127.8.8.8",
        "0.0.0.0",
        "0.1.2.3",
        "10.0.0.1",
        "100.64.0.1",  # carriers' own
        "169.254.169.254",  # a cloud's metadata
        "172.16.0.1",
        "168.63.129.16",  # Azure's, by which a machine reaches its host
        "192.0.0.192",  # Oracle's metadata
        "192.88.99.1",
        "192.0.2.1",
        "192.168.1.1",
        "198.18.0.1",
        "224.0.0.1",
        "239.1.1.1",
        "240.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "::ffff:127.0.0.1",
        "::ffff:10.0.0.1",
        "::ffff:169.254.169.254",
        "::127.0.0.1",
        "::10.0.0.1",
        "64:ff9b::7f00:1",
        "64:ff9b::a9fe:a9fe",
        "64:ff9b:1::a00:1",
        "2002:7f00:1::",
        "2002:a00:1::1",
        "2002:101:101::",  # 6to4, of which versions of Python think differently
        "2001:0:7f00:1::",
        "fc00::1",
        "fd00:ec2::254",
        "fe80::1",
        "fe80::1%lo",
        "ff02::1",
        "2001:db8::1",
        "3fff::1",
        "fec0::1",
        "::ffff:168.63.129.16",
        "localhost",
        "",
    ],
)
def test_nothing_is_sent_to_what_is_not_public(address: str) -> None:
    assert complaint_about_address(address) is not None


@pytest.mark.parametrize("address", ["1.1.1.1", "93.184.216.34", "2606:4700::1111", "::ffff:1.1.1.1"])
def test_public_addresses_are_fine(address: str) -> None:
    assert complaint_about_address(address) is None


@pytest.mark.parametrize("written", ["127.0.0.1", "::ffff:127.0.0.1"])
def test_an_allowed_network_holds_however_its_address_is_written(written: str) -> None:
    assert complaint_about_address(written, read_networks(["127.0.0.0/8"])) is None


def test_what_is_allowed_allows_nothing_else() -> None:
    networks = read_networks(["10.1.0.0/16", "fd00::/8"])
    assert complaint_about_address("10.1.2.3", networks) is None
    assert complaint_about_address("fd00::1", networks) is None
    assert complaint_about_address("10.2.0.1", networks) is not None
    assert complaint_about_address("169.254.169.254", networks) is not None
    assert complaint_about_address("64:ff9b::a02:1", networks) is not None


@given(st.ip_addresses(v=4))
def test_an_address_means_the_same_in_six_bytes_or_sixteen(address: object) -> None:
    plain, mapped = complaint_about_address(str(address)), complaint_about_address(f"::ffff:{address}")
    assert (plain is None) == (mapped is None)


@pytest.mark.parametrize("text", ["", "10.0.0.1/8", "10.0.0.0/99", "everything"])
def test_a_network_that_is_none_is_said_to_be_none(text: str) -> None:
    with pytest.raises(ValueError):
        read_networks([text])
