"""How this broker speaks TLS: with clients, and with the other brokers of its cluster."""

from __future__ import annotations

import os
import ssl
import stat
from typing import Final

from clarion.broker.config import BrokerConfig, TlsConfig
from clarion.world import event_log

log = event_log("broker")


class TlsFilesError(OSError):
    """Certificates and keys that cannot be used, in words that name them. (OpenSSL's name none.)"""


_NOT_AN_AUTHORITY: Final = " is not the certificate of an authority, as PEM"
_NOT_A_PAIR: Final = ("KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH")
_TLS_1_2_CIPHERS: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"  # forward secret, and authenticated


def tls_for_clients(tls: TlsConfig | None) -> ssl.SSLContext | None:
    """What a listener needs; None without TLS."""
    if tls is None:
        return None
    if is_readable_by_everybody(tls.key):
        log.warning("tls_key_readable_by_everybody", key=tls.key, reason="its mode should be 0600 or 0640")
    return client_context(tls)


def client_context(tls: TlsConfig) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(_TLS_1_2_CIPHERS)  # those of TLS 1.3 are all of this kind
    _load_chain(context, tls)
    if tls.client_ca is not None:
        _load_authority(context, tls.client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def is_readable_by_everybody(path: str) -> bool:
    return bool(os.stat(path).st_mode & stat.S_IROTH)


def _load_chain(context: ssl.SSLContext, tls: TlsConfig) -> None:
    """Nobody is asked for a pass phrase: a broker starts, and reloads, without anybody there."""

    def refuse_pass_phrase() -> str:
        raise TlsFilesError(f"{tls.key} is encrypted: it must be stored without a pass phrase")

    try:
        context.load_cert_chain(tls.certificate, tls.key, password=refuse_pass_phrase)
    except ssl.SSLError as error:
        if error.reason in _NOT_A_PAIR:
            raise TlsFilesError(f"{tls.key} is not the key of {tls.certificate}") from error
        raise TlsFilesError(
            f"{tls.certificate} is not a certificate, or {tls.key} not a private key, as PEM"
        ) from error


def _load_authority(context: ssl.SSLContext, path: str) -> None:
    try:
        context.load_verify_locations(path)
    except ssl.SSLError as error:
        raise TlsFilesError(f"{path}{_NOT_AN_AUTHORITY}") from error


def tls_to_brokers(config: BrokerConfig) -> ssl.SSLContext | None:
    """Brokers reach each other where the first listener is. Names are checked; a broker shows its own certificate."""
    tls = config.listeners[0].tls
    if tls is None:
        return None
    authority = config.cluster_ca or tls.client_ca
    if authority:
        os.stat(authority)  # whose complaint, unlike that of TLS, names the file
    try:
        context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=authority)
    except ssl.SSLError as error:
        raise TlsFilesError(f"{authority}{_NOT_AN_AUTHORITY}") from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _load_chain(context, tls)
    return context


def renew_tls_to_brokers(context: ssl.SSLContext, config: BrokerConfig) -> None:
    """What `tls_to_brokers` has made, with the files as they are now; an authority that is gone stays trusted.

    In place, for the channels that there are hold on to it, and connect anew for as long as the broker runs.
    """
    tls = config.listeners[0].tls
    assert tls is not None
    _load_chain(context, tls)
    if authority := config.cluster_ca or tls.client_ca:
        _load_authority(context, authority)
