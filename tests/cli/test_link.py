"""What a command says when it cannot come to an understanding with the broker."""

from __future__ import annotations

import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from clarion.cli import link

from .conftest import Broker, Shell


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A certificate that nobody else has signed, and its key."""
    folder: Path = tmp_path_factory.mktemp("tls")
    certificate, key = str(folder / "broker.pem"), str(folder / "broker.key")
    words = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    names = ["-subj", "/CN=broker", "-keyout", key, "-out", certificate]
    subprocess.run(["openssl", *words, *names], check=True, capture_output=True)
    return certificate, key


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory, certificate: tuple[str, str]) -> Iterator[Broker]:
    flags = ["--listen", "127.0.0.1:0", "--tls-certificate", certificate[0], "--tls-key", certificate[1]]
    broker = Broker(tmp_path_factory.mktemp("secure") / "data", *flags)
    yield broker
    broker.stop()


@pytest.fixture(autouse=True)
def much_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """None of these answers may depend on the client library's giving up: the test's own limit would end it first."""
    monkeypatch.setattr(link, "REQUEST_SECONDS_MAX", 600.0)


@pytest.mark.parametrize("words", [["topic", "describe", "x"], ["topic", "list"], ["consume", "x"]])
def test_a_certificate_that_is_not_trusted_is_named_as_the_reason(secure: Broker, words: list[str]):
    complaint = Shell(secure.address)("-X", "security.protocol=ssl", *words).one_line_error(1)
    assert f"no TLS with {secure.address}" in complaint
    assert "ssl.ca.location" in complaint
    assert "/bootstrap" not in complaint
    assert "(after" not in complaint


@pytest.mark.parametrize("words", [["topic", "list"], ["produce", "x"], ["consume", "x"], ["group", "list"], ["bench"]])
def test_who_comes_without_tls_is_told_so_at_once(secure: Broker, words: list[str]):
    complaint = Shell(secure.address)(*words).one_line_error(1)
    assert complaint.startswith(f"{secure.address} wants TLS: add -X security.protocol=ssl")


def test_who_comes_with_tls_to_a_plain_listener_is_told_so_at_once(broker: Broker):
    complaint = Shell(broker.address)("-X", "security.protocol=SSL", "topic", "list").one_line_error(1)
    assert complaint == f"{broker.address} does not speak TLS: leave security.protocol=ssl out"


def test_a_host_that_nobody_knows_is_named():
    assert Shell("no-such-host.invalid:9092")("topic", "list").one_line_error(1) == (
        "there is no host called no-such-host.invalid"
    )


def test_one_address_of_several_is_enough(broker: Broker):
    assert Shell(f"no-such-host.invalid:9092,{broker.address}")("topic", "list").status == 0


def test_both_sides_say_whom_they_mistook_each_other_for(tmp_path: Path):
    plain = Broker(tmp_path / "data", "--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0")
    metrics = plain.line.split("metrics at http://")[1].partition("/")[0]
    assert "answers with HTTP" in Shell(metrics)("topic", "list").one_line_error(1)
    host, _, port = plain.address.rpartition(":")
    with socket.create_connection((host, int(port))) as browser:
        browser.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert browser.recv(1) == b""
    Shell(plain.address)("-X", "security.protocol=ssl", "topic", "list")
    plain.process.send_signal(signal.SIGTERM)
    _, log = plain.process.communicate(timeout=20)
    assert "looks like an HTTP request" in log
    assert "looks like a TLS handshake" in log


def test_a_tls_listener_says_who_came_without_tls(tmp_path: Path, certificate: tuple[str, str]):
    flags = ["--listen", "127.0.0.1:0", "--tls-certificate", certificate[0], "--tls-key", certificate[1]]
    broker = Broker(tmp_path / "data", *flags)
    Shell(broker.address)("topic", "list")
    broker.process.send_signal(signal.SIGTERM)
    _, log = broker.process.communicate(timeout=20)
    assert "tls_handshake_failed" in log
    assert "did not begin with a TLS handshake" in log, log


def test_a_setting_that_the_client_library_does_not_know_is_a_usage_error(broker):
    complaint = Shell(broker.address)("-X", "nonsense=1", "topic", "list").one_line_error(2)
    assert complaint == '-X, or the profile: No such configuration property: "nonsense"'
