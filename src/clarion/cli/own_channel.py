"""How commands ask brokers what confluent-kafka has no words for: over the channel that brokers use between them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

from clarion.cli.errors import CliError
from clarion.cli.link import REQUEST_SECONDS_MAX, Link

if TYPE_CHECKING:
    import ssl

    from clarion.net.channel import Channel

Answer = TypeVar("Answer")


class Channels:
    """To any broker, and to those that it names; each is opened once."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._tls = _tls(link)
        self._open: dict[tuple[str, int], Channel] = {}

    async def any(self) -> Channel:
        """All can answer, so the first that can be reached does."""
        from clarion.net.channel import ChannelLostError

        places = [one.rpartition(":") for one in self._link.bootstrap.split(",")]
        for number, (host, _, port) in enumerate(places, start=1):
            try:
                return await self.to(host.strip("[] "), int(port))
            except ChannelLostError:  # that one is away; the next may be there
                if number == len(places):
                    raise
        raise AssertionError("an address has at least one place")

    async def to(self, host: str, port: int) -> Channel:
        from clarion.net.channel import Channel, ChannelSettings

        known = self._open.get((host, port))
        if known is None:
            known = self._open[host, port] = await Channel.open(ChannelSettings(host, port, "clarion", self._tls))
        return known

    def close(self) -> None:
        for channel in self._open.values():
            channel.close()


def can_ask(link: Link) -> bool:
    """Not with security protocols that the channel does not speak."""
    return link.own_client(REQUEST_SECONDS_MAX) is not None


def with_channels(link: Link, ask: Callable[[Channels], Awaitable[Answer]]) -> Answer:
    import asyncio  # --help and completion do without it

    from clarion.net.channel import ChannelLostError, ChannelUnusableError

    async def run() -> Answer:
        channels = Channels(link)
        try:
            return await ask(channels)
        finally:
            channels.close()

    try:
        return asyncio.run(run())
    except (ChannelLostError, ChannelUnusableError) as error:
        raise CliError(str(error)) from error


def with_channel(link: Link, ask: Callable[[Any], Awaitable[Answer]]) -> Answer:
    """What a broker answers: any of them, for all can."""

    async def run(channels: Channels) -> Answer:
        return await ask(await channels.any())

    return with_channels(link, run)


def _tls(link: Link) -> ssl.SSLContext | None:
    from clarion.pipeline.kafka.connection import tls_context

    settings = link.own_client(REQUEST_SECONDS_MAX)
    if settings is None:
        raise CliError(f"this is asked for with security.protocol plaintext or ssl, not {link.protocol}")
    try:
        return None if settings.tls is None else tls_context(settings.tls)
    except OSError as error:
        raise CliError(f"TLS: {error}") from error
