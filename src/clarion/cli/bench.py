"""`clarion bench`: a quick self-test through an ordinary client: how much goes in, how much comes out, how soon.

The figures are those of one Python client, not the broker's limits; `make bench` measures those.
"""

from __future__ import annotations

import os
import secrets
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clarion.cli.errors import CliError, UsageError
from clarion.cli.link import BootstrapOption, JsonOption, Link, admin_api, explain, poll_available, result_of
from clarion.cli.table import Column, show_notice, show_rows
from clarion.cli.units import bytes_text, count_text, duration_text

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Producer

_STALL_SECONDS_MAX = 30.0
_LEAVE_SECONDS_MAX = 5.0  # for what is under way when somebody ends it
_STAMP_BYTES = 8  # each message of the latency test begins with the nanosecond at which it was sent
Advance = Callable[[int], None]


def add_to(app: typer.Typer) -> None:
    app.command()(bench)


def bench(
    context: typer.Context,
    messages: Annotated[
        int, typer.Option("--messages", "-n", metavar="N", help="Messages to send and read.")
    ] = 200_000,
    size: Annotated[int, typer.Option(metavar="BYTES", help="Of one message.")] = 1_024,
    partitions: Annotated[int, typer.Option("--partitions", "-p", metavar="N", help="Of the topic it makes.")] = 1,
    acks: Annotated[str, typer.Option(help="0, 1 or all.")] = "all",
    compression: Annotated[
        str, typer.Option("--compression", "-z", metavar="CODEC", help="none, gzip, snappy, lz4, zstd.")
    ] = "none",
    latency_rate: Annotated[int, typer.Option(metavar="N", help="Messages a second in the latency test.")] = 500,
    latency_seconds: Annotated[float, typer.Option(metavar="S", help="0 leaves the latency test out.")] = 5.0,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the topic.")] = False,
    bootstrap: BootstrapOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure produce, consume and end-to-end latency against a broker, in a topic of its own.

    Example:

        clarion bench --messages 10000 --latency-seconds 1
    """
    for flag, value, least in (
        ("--messages", messages, 1),
        ("--size", size, _STAMP_BYTES),
        ("--partitions", partitions, 1),
    ):
        if value < least:
            raise UsageError(f"{flag} {value}: at least {least}")
    if acks not in ("0", "1", "all"):
        raise UsageError(f"--acks {acks}: choose one of 0, 1, all")
    if latency_rate < 1 or not 0 <= latency_seconds < 3600:
        raise UsageError("--latency-rate at least 1, --latency-seconds from 0 to 3600")
    link = Link.of(context, bootstrap)
    with _topic(link, partitions, keep) as topic:
        settings = {"acks": acks, "compression.type": compression, "linger.ms": 5, "batch.size": 262_144}
        rows = [_produce(link, topic, messages, size, settings), _consume(link, topic, messages)]
        if latency_seconds > 0:
            rows.append(_latency(link, topic, size, latency_rate, latency_seconds, {**settings, "linger.ms": 0}))
    show_rows(rows, _COLUMNS, as_json=as_json)


_COLUMNS = [
    Column("test", "TEST", style="cyan"),
    Column("messages", "MESSAGES", count_text, right=True),
    Column("seconds", "TOOK", lambda seconds: duration_text(seconds * 1000), right=True),
    Column("messages_per_second", "MESSAGES/S", count_text, right=True),
    Column("bytes_per_second", "BYTES/S", lambda count: f"{bytes_text(count)}/s", right=True),
    Column("p50_ms", "P50", duration_text, right=True),
    Column("p99_ms", "P99", duration_text, right=True),
    Column("p999_ms", "P99.9", duration_text, right=True),
]


def _produce(link: Link, topic: str, messages: int, size: int, settings: dict[str, Any]) -> dict[str, Any]:
    payload = os.urandom(size // 2 + 1).hex()[:size].encode()  # compresses about two to one, as text does
    latencies: list[float] = []
    errors: list[str] = []

    def on_delivery(error: Any, message: Any) -> None:
        if error is not None:
            errors.append(explain(error, link))
        else:
            latencies.append(message.latency() * 1000)

    with _sender(link, settings) as producer, _bar("sending", messages) as advance:
        begin = time.perf_counter()
        for number in range(messages):
            _offer(producer, topic, payload, on_delivery)
            if number % 1_000 == 999:
                advance(1_000)
        producer.flush(_STALL_SECONDS_MAX)
        seconds = time.perf_counter() - begin
    if errors or len(latencies) < messages:
        raise CliError(f"{messages - len(latencies):,} messages did not arrive: {(errors or ['no answer in time'])[0]}")
    return _row("produce", messages, seconds, size, latencies)


def _consume(link: Link, topic: str, messages: int) -> dict[str, Any]:
    consumer = _reader(link, topic, {"fetch.min.bytes": 1})
    got, got_bytes, heard_at = 0, 0, time.perf_counter()
    with _bar("reading", messages) as advance:
        begin = time.perf_counter()
        while got < messages:
            found = _values(consumer, link, 10_000)
            got += len(found)
            got_bytes += sum(map(len, found))
            advance(len(found))
            heard_at = time.perf_counter() if found else heard_at
            if time.perf_counter() - heard_at > _STALL_SECONDS_MAX:
                raise CliError(f"only {got:,} of {messages:,} messages came back")
        seconds = time.perf_counter() - begin
    consumer.close()
    return _row("consume", got, seconds, got_bytes / got, [])


def _latency(link: Link, topic: str, size: int, rate: int, seconds: float, settings: dict[str, Any]) -> dict[str, Any]:
    """From `produce` to the reader's hands, at a fixed rate: a thread reads while this one sends."""
    consumer = _reader(link, topic, {"fetch.wait.max.ms": 100}, from_end=True)
    listener = _Listener(consumer, link)
    listener.start()
    wanted = max(int(rate * seconds), 1)
    filler = bytes(size - _STAMP_BYTES)
    with _sender(link, settings) as producer, _bar("latency", wanted) as advance:
        begin = time.perf_counter()
        for number in range(wanted):
            while (rest := begin + number / rate - time.perf_counter()) > 0:
                producer.poll(min(rest, 0.01))
            _offer(producer, topic, time.perf_counter_ns().to_bytes(8, "big") + filler, None)
            advance(1)
        producer.flush(_STALL_SECONDS_MAX)
        took = time.perf_counter() - begin
    latencies = listener.finish(wanted)
    return _row(f"latency at {rate:,}/s", wanted, took, size, latencies)


class _Listener(Thread):
    def __init__(self, consumer: Consumer, link: Link) -> None:
        super().__init__(daemon=True)
        self._consumer = consumer
        self._link = link
        self._stopping = Event()
        self.latencies_ms: list[float] = []

    def run(self) -> None:
        while not self._stopping.is_set():
            found = _values(self._consumer, self._link, 1)
            now = time.perf_counter_ns()
            self.latencies_ms += [(now - int.from_bytes(each[:_STAMP_BYTES], "big")) / 1e6 for each in found]
        self._consumer.close()

    def finish(self, wanted: int) -> list[float]:
        until = time.perf_counter() + _STALL_SECONDS_MAX
        while len(self.latencies_ms) < wanted and time.perf_counter() < until:
            time.sleep(0.01)
        self._stopping.set()
        self.join()
        if len(self.latencies_ms) < wanted:
            raise CliError(f"only {len(self.latencies_ms):,} of {wanted:,} messages came back")
        return self.latencies_ms


@contextmanager
def _sender(link: Link, settings: dict[str, Any]) -> Iterator[Producer]:
    """A producer of which nothing is left under way when the block fails: it would make the topic anew."""
    producer = link.producer(settings)
    try:
        yield producer
    except BaseException as error:
        producer.purge(in_flight=False)
        producer.flush(_LEAVE_SECONDS_MAX)
        if isinstance(error, SystemError):  # what the client library makes of Ctrl-C while it calls us
            raise KeyboardInterrupt from error
        raise


def _offer(producer: Producer, topic: str, payload: bytes, on_delivery: Any) -> None:
    while True:
        try:
            producer.produce(topic, payload, on_delivery=on_delivery)
            producer.poll(0)
            return
        except BufferError:
            producer.poll(0.05)


def _reader(link: Link, topic: str, settings: dict[str, Any], *, from_end: bool = False) -> Consumer:
    """Every partition, from its first message or behind its last; positioned before it returns."""
    from confluent_kafka import TopicPartition

    from clarion.cli.known_topics import describe_topic
    from clarion.cli.offsets import all_partitions, end_offsets, start_offsets

    admin = link.admin()
    places = all_partitions(describe_topic(admin, link, topic))
    starts = (end_offsets if from_end else start_offsets)(admin, link, places)
    consumer = link.consumer({"group.id": topic, "enable.auto.commit": False, **settings})
    consumer.assign([TopicPartition(name, partition, starts[name, partition]) for name, partition in places])
    return consumer


def _values(consumer: Consumer, link: Link, most: int) -> list[bytes]:
    found = poll_available(consumer, most, 0.1)
    for each in found:
        error = each.error()
        if error is not None and not error.retriable():
            raise CliError(f"reading: {explain(error, link)}")
    return [each.value() or b"" for each in found if each.error() is None]


def _row(test: str, messages: int, seconds: float, size: float, latencies_ms: list[float]) -> dict[str, Any]:
    ordered = sorted(latencies_ms)
    return {
        "test": test,
        "messages": messages,
        "seconds": round(seconds, 3),
        "messages_per_second": round(messages / seconds),
        "bytes_per_second": round(messages * size / seconds),
        "p50_ms": percentile(ordered, 0.5),
        "p99_ms": percentile(ordered, 0.99),
        "p999_ms": percentile(ordered, 0.999),
    }


def percentile(ordered: list[float], share: float) -> float | None:
    """The nearest-rank percentile of sorted numbers."""
    return round(ordered[min(int(len(ordered) * share), len(ordered) - 1)], 3) if ordered else None


@contextmanager
def _topic(link: Link, partitions: int, keep: bool) -> Iterator[str]:
    name = f"clarion-bench-{secrets.token_hex(4)}"
    admin = link.admin()
    result_of(admin.create_topics([admin_api().NewTopic(name, partitions, -1)])[name], link, f"create {name}")
    try:
        yield name
    finally:
        if keep:
            show_notice(f"kept {name}")
        else:
            result_of(admin.delete_topics([name])[name], link, f"delete {name}")


@contextmanager
def _bar(what: str, total: int) -> Iterator[Advance]:
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from clarion.cli.progress import count_bar

    with count_bar(what, total) as advance:
        yield advance
