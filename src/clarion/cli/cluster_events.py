"""`clarion cluster events`: what the cluster manager decided, from the topic that keeps it, or from the store."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from clarion.cli.cluster import commands
from clarion.cli.errors import CliError, UsageError
from clarion.cli.link import (
    REQUEST_SECONDS_MAX,
    BootstrapOption,
    JsonOption,
    Link,
    explain,
    plain_errors,
    poll_available,
)
from clarion.cli.table import clean, show_json
from clarion.model.names import EVENTS_TOPIC

if TYPE_CHECKING:
    from confluent_kafka import Consumer

    from clarion.cluster.events import ClusterEvent

_AT_ONCE: Final = 1000

ClusterOption = Annotated[
    str | None,
    typer.Option("--cluster", metavar="ADDRESS", help="Ask this store instead: file:PATH or etcd://HOST:PORT."),
]
DataDirOption = Annotated[
    str | None, typer.Option("--data-dir", metavar="PATH", help="Ask the store of this `serve --brokers` instead.")
]


@commands.command()
def events(
    context: typer.Context,
    limit: Annotated[int, typer.Option("--limit", "-n", metavar="N", help="The latest N.")] = 500,
    cluster: ClusterOption = None,
    data_dir: DataDirOption = None,
    bootstrap: BootstrapOption = None,
    as_json: JsonOption = False,
) -> None:
    """Tell what the cluster manager decided, and why.

    The brokers keep it for months; the store, which also answers when no broker runs, has the latest few hundred.
    """
    if limit < 1:
        raise UsageError(f"--limit {limit}: at least 1")
    cluster = cluster or (os.environ.get("CLARION_CLUSTER") if data_dir is None else None)
    if cluster is None and data_dir is None:
        told = _of_topic(Link.of(context, bootstrap), limit)
    else:
        told = _of_store(_store_address(cluster, data_dir or ""))[-limit:]
    if as_json:
        show_json([{"at": time_text(one.at_ms), "event": one.sentence} for one in told])
        return
    for one in told:
        print(f"{time_text(one.at_ms)}  {clean(one.sentence)}")
    if not told:
        print("nothing was decided yet")


def time_text(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(sep=" ", timespec="milliseconds")


# From the topic


class EventReader:
    """Reads the topic on from the latest so many events."""

    def __init__(self, link: Link, latest: int) -> None:
        from confluent_kafka import KafkaError as ClientError
        from confluent_kafka import KafkaException, TopicPartition

        # No group is joined, and nothing is committed; the client library wants a name all the same.
        self._consumer: Consumer = link.consumer({"group.id": "clarion-cli", "enable.auto.commit": False})
        self._link = link
        at = TopicPartition(EVENTS_TOPIC, 0)
        try:
            first, self.end = self._consumer.get_watermark_offsets(at, timeout=REQUEST_SECONDS_MAX)
        except KafkaException as error:
            self.close()
            missing = (ClientError.UNKNOWN_TOPIC_OR_PART, ClientError._UNKNOWN_TOPIC, ClientError._UNKNOWN_PARTITION)
            is_there = error.args[0].code() not in missing
            what = (
                f"{EVENTS_TOPIC} cannot be read: {explain(error.args[0], link)}"
                if is_there
                else f"there is no topic {EVENTS_TOPIC} at {link.bootstrap}"
            )
            raise CliError(f"{what}; ask the cluster's store, with --cluster or --data-dir") from error
        self._next = max(first, self.end - latest)
        self._consumer.assign([TopicPartition(EVENTS_TOPIC, 0, self._next)])

    def until_end(self) -> Iterator[ClusterEvent]:
        """What was there when the reader was made."""
        deadline = time.monotonic() + REQUEST_SECONDS_MAX
        while self._next < self.end:
            yield from self.poll(1.0)
            if time.monotonic() > deadline:
                raise CliError(f"no answer from {self._link.bootstrap} in time")

    def poll(self, seconds: float) -> list[ClusterEvent]:
        from clarion.cluster.events import ClusterEvent

        found: list[ClusterEvent] = []
        with plain_errors(self._link):
            messages: list[Any] = poll_available(self._consumer, _AT_ONCE, seconds)
        for message in messages:
            if message.error() is None:
                self._next = message.offset() + 1
                found.append(ClusterEvent.of(message.value()))
        return found

    def close(self) -> None:
        self._consumer.close()


def _of_topic(link: Link, limit: int) -> list[ClusterEvent]:
    reader = EventReader(link, limit)
    try:
        return list(reader.until_end())
    finally:
        reader.close()


# From the store


def _store_address(cluster: str | None, data_dir: str) -> str:
    from clarion.cluster.opening import InvalidAddressError, check_address, folder_of
    from clarion.log.data_directory import STORE_FOLDER

    if cluster is None:
        folder = os.path.join(os.path.abspath(os.path.expanduser(data_dir)), STORE_FOLDER)
        if not os.path.isdir(folder):
            raise CliError(f"{data_dir} holds no cluster; say which one, with --cluster or --data-dir")
        return f"file:{folder}"
    try:
        check_address(cluster)
    except InvalidAddressError as error:
        raise CliError(f"--cluster {cluster}: {error}") from error
    folder_told = folder_of(cluster)
    if folder_told is not None and not os.path.isdir(folder_told):
        raise CliError(f"--cluster {cluster}: there is no such folder")
    return cluster


def _of_store(address: str) -> list[ClusterEvent]:
    import asyncio

    from clarion.cluster import StoreError
    from clarion.cluster.events import read_events
    from clarion.cluster.opening import open_store

    async def read() -> list[ClusterEvent]:
        store = await open_store(address, lambda _error: None)
        try:
            return await read_events(store)
        finally:
            await store.close()

    try:
        return asyncio.run(read())
    except (StoreError, OSError) as error:
        raise CliError(f"the store {address} cannot be read: {error}") from error
