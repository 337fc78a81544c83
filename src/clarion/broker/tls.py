"""How this broker speaks TLS: with clients, and with the other brokers of its cluster."""

from __future__ import annotations

import os
import ssl
import stat
from typing import Final

from clarion.broker.config import BrokerConfig, TlsConfig
from clarion.world import event_log

log = event_log("broker")

_TLS_1_2_CIPHERS: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"  # forward secret, and authenticated


def tls_for_clients(tls: TlsConfig | None) -> ssl.SSLContext | None:
    if tls is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=tls.client_ca)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(_TLS_1_2_CIPHERS)  # those of TLS 1.3 are all of this kind
    context.load_cert_chain(tls.certificate, tls.key)
    if os.stat(tls.key).st_mode & stat.S_IROTH:
        log.warning("tls_key_readable_by_everybody", key=tls.key, reason="its mode should be 0600 or 0640")
    if tls.client_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def tls_to_brokers(config: BrokerConfig) -> ssl.SSLContext | None:
    """Brokers reach each other where the first listener is. Names are checked; a broker shows its own certificate."""
    tls = config.listeners[0].tls
    if tls is None:
        return None
    if config.cluster_ca:
        os.stat(config.cluster_ca)  # whose complaint, unlike that of TLS, names the file
    context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=config.cluster_ca or tls.client_ca)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(tls.certificate, tls.key)
    return context


def renew_tls_to_brokers(context: ssl.SSLContext, config: BrokerConfig) -> None:
    """What `tls_to_brokers` has made, with the files as they are now; an authority that is gone stays trusted.

    In place, for the channels that there are hold on to it, and connect anew for as long as the broker runs.
    """
    tls = config.listeners[0].tls
    assert tls is not None
    context.load_cert_chain(tls.certificate, tls.key)
    if authority := config.cluster_ca or tls.client_ca:
        context.load_verify_locations(authority)
