"""What a command says when it cannot come to an understanding with the broker."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from clarion.cli import link

from .conftest import Broker, Shell


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker with TLS whose certificate nobody else has signed."""
    folder: Path = tmp_path_factory.mktemp("tls")
    certificate, key = str(folder / "broker.pem"), str(folder / "broker.key")
    words = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    names = ["-subj", "/CN=broker", "-keyout", key, "-out", certificate]
    subprocess.run(["openssl", *words, *names], check=True, capture_output=True)
    flags = ["--listen", "127.0.0.1:0", "--tls-certificate", certificate, "--tls-key", key]
    broker = Broker(folder / "data", *flags)
    yield broker
    broker.stop()


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "REQUEST_SECONDS_MAX", 2.0)


def test_a_certificate_that_is_not_trusted_is_named_as_the_reason(secure: Broker):
    complaint = Shell(secure.address)("-X", "security.protocol=ssl", "topic", "describe", "x").one_line_error()
    assert f"no TLS with {secure.address}" in complaint
    assert "ssl.ca.location" in complaint
    assert "/bootstrap" not in complaint
    assert "(after" not in complaint


def test_who_comes_without_tls_is_asked_whether_it_is_that(secure: Broker):
    assert "-X security.protocol=ssl" in Shell(secure.address)("topic", "describe", "x").one_line_error()
