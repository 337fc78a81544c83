"""How to reach a cluster: addresses, TLS, patience. Frozen and hashable, so that a worker can keep clients by it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

BOOTSTRAP_PORT: Final = 9092


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """Files in PEM format."""

    ca_file: str | None = None  # None: the machine's own certificate authorities
    certificate_file: str | None = None
    key_file: str | None = None
    key_password: str | None = None
    checks_host_name: bool = True

    def __repr__(self) -> str:
        return f"TlsSettings(ca_file={self.ca_file!r}, certificate_file={self.certificate_file!r})"  # no password


@dataclass(frozen=True, slots=True)
class ClientSettings:
    bootstrap_servers: tuple[str, ...]
    client_id: str = "clarion-spark"
    tls: TlsSettings | None = None
    # A broker that says nothing for this long is taken for gone (Kafka's own default for consumers and producers).
    request_timeout_ms: int = 30_000
    connect_timeout_ms: int = 10_000
    # How long a reader goes on trying: longer than any broker takes to come back, shorter than anybody's patience.
    api_timeout_ms: int = 120_000
    retry_backoff_ms: int = 50
    retry_backoff_max_ms: int = 1_000


def address(text: str) -> tuple[str, int]:
    """`host:port`, `[v6]:port` or `host`."""
    host, colon, port = text.strip().rpartition(":")
    if not colon or text.strip().endswith("]"):
        host, port = text.strip(), str(BOOTSTRAP_PORT)
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f"bootstrap.servers: {text.strip()!r} is not host:port")
    return host.strip("[]"), int(port)
