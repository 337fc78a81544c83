"""`clarion produce`: lines or JSON records from a file or a pipe into a topic."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from clarion.cli import completion
from clarion.cli.errors import CliError, UsageError
from clarion.cli.interrupt import interrupts_outside
from clarion.cli.known_topics import NoTopicError, ask_for_topic, describe_topic
from clarion.cli.link import BootstrapOption, JsonOption, Link, admin_api, explain, plain_errors, result_of
from clarion.cli.message import Headers, TextMessage, from_json
from clarion.cli.table import show_json, show_notice
from clarion.cli.topic_arguments import setting_pair
from clarion.cli.units import bytes_text, count_text, duration_text, plural

if TYPE_CHECKING:
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient

_COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")
_ACKS = ("0", "1", "all")
_SILENCE_SECONDS_MAX = 3.0  # a slow broker answers sooner than this, and nobody likes to wait longer for a word
_LOOK_SECONDS_MAX = 3.0  # for the answer to what may be wrong
_FLUSH_SECONDS_MAX = 310.0  # a little more than message.timeout.ms, after which every message has failed by itself
# librdkafka refuses some values of these together with idempotence: who sets one of them gets what was asked for.
_AT_ODDS = frozenset(
    {
        "acks",
        "request.required.acks",
        "retries",
        "message.send.max.retries",
        "max.in.flight",
        "max.in.flight.requests.per.connection",
        "queuing.strategy",
    }
)
_LINE_BYTES_MAX = 128 * 1024 * 1024  # a "line" longer than the largest frame is a binary file, not a message


def add_to(app: typer.Typer) -> None:
    app.command()(produce)


def produce(
    context: typer.Context,
    topic: Annotated[
        str, typer.Argument(metavar="TOPIC", help="Where to: a topic's name or id.", autocompletion=completion.topics)
    ],
    file: Annotated[str, typer.Argument(metavar="[FILE]", help="One message per line; - is stdin.")] = "-",
    key: Annotated[str | None, typer.Option("--key", "-k", help="The key of every message.")] = None,
    key_separator: Annotated[
        str | None, typer.Option("--key-separator", "-K", metavar="TEXT", help="Lines are KEY<TEXT>VALUE.")
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option("--header", "--headers", "-H", metavar="NAME=VALUE", help="On every message; repeatable."),
    ] = None,
    partition: Annotated[
        int | None, typer.Option("--partition", "-p", metavar="N", help="Instead of choosing by key.")
    ] = None,
    timestamp: Annotated[str | None, typer.Option(metavar="TIME", help="A time for every message, e.g. -5m.")] = None,
    json_lines: Annotated[
        bool,
        typer.Option("--json-lines", "-J", help="Lines are JSON: key, value, headers, partition, timestamp."),
    ] = False,
    null_marker: Annotated[
        str | None, typer.Option(metavar="TEXT", help="A value equal to TEXT becomes null (a tombstone).")
    ] = None,
    compression: Annotated[
        str, typer.Option("--compression", "-z", metavar="CODEC", help=", ".join(_COMPRESSIONS))
    ] = "none",
    acks: Annotated[str, typer.Option(help="0, 1 or all.")] = "all",
    rate: Annotated[float | None, typer.Option(metavar="N", help="At most N messages a second.")] = None,
    create: Annotated[bool, typer.Option("--create", help="Create the topic if it is missing.")] = False,
    bootstrap: BootstrapOption = None,
    as_json: JsonOption = False,
) -> None:
    """Send lines to a topic and say how many arrived.

    A topic that does not exist is made, where the broker allows it. With --acks all, what is sent again because an
    answer was lost is written once, and in order.

    Examples:

        echo hello | clarion produce greetings
        echo 4711,paid | clarion produce orders --key-separator ,
        echo '{"key": "4711", "value": "paid"}' | clarion produce orders --json-lines
    """
    _check_choice("--compression", compression, _COMPRESSIONS)
    _check_choice("--acks", acks, _ACKS)
    if rate is not None and rate <= 0:
        raise UsageError(f"--rate {rate:g}: messages a second, more than 0")
    read = _reader(json_lines, key, key_separator, header, partition, timestamp, null_marker)
    link = Link.of(context, bootstrap)
    with _opened(file) as source:
        topic = _found_topic(link, topic, partition, create)
        settings = {
            "compression.type": compression,
            "acks": acks,
            "linger.ms": 5,
            "message.max.bytes": 100_000_000,  # the topic's own limit decides
            "allow.auto.create.topics": False,  # it is there by now; one that is deleted meanwhile stays so
            "enable.idempotence": acks == "all" and not _AT_ODDS.intersection(link.settings),
        }
        run = Run(link.producer(settings), link, topic)
        _send_all(run, source, read, rate)
    _report(run, as_json)


@dataclass
class Run:
    """One producer at work: what it sent and what became of it."""

    producer: Producer
    link: Link
    topic: str
    sent: int = 0
    sent_bytes: int = 0
    arrived: int = 0
    failed: int = 0
    first_error: str = ""
    seconds: float = 0.0
    last_news: float = field(default_factory=time.monotonic)  # when the broker last answered for a message
    has_told: bool = False  # that it does not
    check_interrupt: Callable[[], None] = lambda: None  # of a Ctrl-C that came while something was counted

    def send(self, message: TextMessage) -> None:
        places: dict[str, Any] = {}
        if message.partition is not None:
            places["partition"] = message.partition
        if message.timestamp_ms is not None:
            places["timestamp"] = message.timestamp_ms
        headers = list(message.headers) or None
        while not self._offer(message, headers, places):
            self.producer.poll(0.1)  # the queue is full: let deliveries make room
            self.check_interrupt()
            self._tell_if_stuck()
        self.producer.poll(0)
        self.check_interrupt()

    def finish(self) -> None:
        end = time.monotonic() + _FLUSH_SECONDS_MAX
        self.last_news = time.monotonic()
        while self.producer.flush(0.5) and time.monotonic() < end:
            self._tell_if_stuck()

    def _tell_if_stuck(self) -> None:
        """The client tries again and again without a word; whoever waits should know for what."""
        if not self.has_told and time.monotonic() - self.last_news > _SILENCE_SECONDS_MAX:
            self.has_told = True
            show_notice(
                f"{self.link.bootstrap} has taken no message for {_SILENCE_SECONDS_MAX:.0f} s; still trying. "
                + self._what_may_be_wrong()
            )

    def _what_may_be_wrong(self) -> str:
        from confluent_kafka import KafkaException

        try:
            known = self.producer.list_topics(self.topic, timeout=_LOOK_SECONDS_MAX).topics[self.topic].partitions
        except KafkaException:
            return "Is it still there?"
        if any(one.leader < 0 for one in known.values()):
            return f"Nobody leads a part of {self.topic}: `clarion cluster status` tells more"
        if any(len(one.isrs) < len(one.replicas) for one in known.values()):
            return (
                f"Replicas of {self.topic} are missing: are fewer in sync than its min.insync.replicas? "
                "`clarion cluster status` tells more"
            )
        return "Is its disk full? Its log and /readyz tell"

    def _offer(self, message: TextMessage, headers: Any, places: dict[str, Any]) -> bool:
        try:
            with plain_errors(self.link, f"message {self.sent + 1:,}"):
                self.producer.produce(
                    self.topic, message.value, message.key, headers=headers, on_delivery=self._on_delivery, **places
                )
        except BufferError:
            return False
        self.sent += 1
        self.sent_bytes += len(message.key or b"") + len(message.value or b"")
        return True

    def _on_delivery(self, error: Any, _: Any) -> None:
        self.last_news = time.monotonic()
        if error is None:
            self.arrived += 1
            return
        self.failed += 1
        self.first_error = self.first_error or explain(error, self.link)


def _send_all(run: Run, source: IO[bytes], read: Callable[[bytes], TextMessage], rate: float | None) -> None:
    started = time.monotonic()
    try:
        with interrupts_outside(Run._offer, Run._on_delivery) as run.check_interrupt, _progress(source) as advance:
            for number, line in enumerate(_lines(source), 1):
                run.send(_read_line(read, line, number))
                advance(len(line))
                if rate is not None:
                    _pace(run, started + run.sent / rate)
    except KeyboardInterrupt:
        show_notice("interrupted; waiting for what was sent")
    except CliError as error:
        run.finish()
        raise CliError(f"{error}; {_before(run)}") from error
    finally:
        run.finish()
        run.seconds = time.monotonic() - started


def _lines(source: IO[bytes]) -> Iterator[bytes]:
    while line := source.readline(_LINE_BYTES_MAX):
        if len(line) == _LINE_BYTES_MAX:
            raise CliError(f"a line of more than {bytes_text(_LINE_BYTES_MAX)}: messages are lines of text")
        yield line


def _read_line(read: Callable[[bytes], TextMessage], line: bytes, number: int) -> TextMessage:
    try:
        return read(line.removesuffix(b"\n"))
    except CliError as error:
        raise CliError(f"line {number:,}: {error}") from error


def _before(run: Run) -> str:
    """What became of what was sent before a mistake: whoever mends it must know whether to send that again."""
    if not run.arrived:
        return "nothing was sent before it"
    return f"{plural(run.arrived, 'message')} before it {'was' if run.arrived == 1 else 'were'} sent"


def _pace(run: Run, until: float) -> None:
    while (rest := until - time.monotonic()) > 0:
        run.producer.poll(min(rest, 0.1))


def _report(run: Run, as_json: bool) -> None:
    lost = run.sent - run.arrived - run.failed
    if as_json:
        show_json({"topic": run.topic, "sent": run.sent, "arrived": run.arrived, "failed": run.failed + lost})
    elif run.arrived == run.sent:
        speed = f"{count_text(run.sent / max(run.seconds, 1e-9))} messages/s"
        took = duration_text(run.seconds * 1000)
        show_notice(f"sent {plural(run.sent, 'message')} ({bytes_text(run.sent_bytes)}) in {took}, {speed}")
    if run.arrived != run.sent:
        reason = run.first_error or "no answer in time"
        raise CliError(f"{run.sent - run.arrived:,} of {plural(run.sent, 'message')} did not arrive: {reason}")


def _reader(
    json_lines: bool,
    key: str | None,
    separator: str | None,
    header: list[str] | None,
    partition: int | None,
    timestamp: str | None,
    null_marker: str | None,
) -> Callable[[bytes], TextMessage]:
    """How a line becomes a message."""
    from clarion.cli.units import parse_time_ms

    if json_lines and (separator is not None or key is not None):
        raise UsageError("--json-lines brings its own keys: leave --key and --key-separator out")
    if separator is not None and key is not None:
        raise UsageError("either --key or --key-separator, not both")
    if separator == "":
        raise UsageError("--key-separator cannot be empty")
    fixed: Headers = [
        (name, value.encode()) for name, value in (setting_pair("--header", each) for each in header or ())
    ]
    moment = None if timestamp is None else parse_time_ms(timestamp, time.time_ns() // 1_000_000)

    def read(line: bytes) -> TextMessage:
        found = from_json(line) if json_lines else _plain(line, key, separator, null_marker)
        if 0 in (moment, found.timestamp_ms):
            raise CliError("timestamp 0, the first moment of 1970, means now to librdkafka; write 1, or leave it out")
        return TextMessage(
            key=found.key,
            value=found.value,
            headers=[*fixed, *found.headers],
            partition=partition if found.partition is None or partition is not None else found.partition,
            timestamp_ms=moment if found.timestamp_ms is None else found.timestamp_ms,
        )

    return read


def _plain(line: bytes, key: str | None, separator: str | None, null_marker: str | None) -> TextMessage:
    message_key = None if key is None else key.encode()
    value: bytes | None = line
    if separator is not None:
        message_key, found, value = line.partition(separator.encode())
        if not found:
            raise CliError(f"there is no {separator!r} between key and value")
    if null_marker is not None and value == null_marker.encode():
        value = None
    return TextMessage(message_key, value)


def _found_topic(link: Link, topic: str, partition: int | None, create: bool) -> str:
    """Its name, whether that or its id was said."""
    admin = link.admin()
    try:
        found = describe_topic(admin, link, topic)
    except NoTopicError as error:
        _make_topic(admin, link, topic, create, str(error))
        found = describe_topic(admin, link, topic)
    if partition is not None and partition not in {each.id for each in found.partitions}:
        raise CliError(f"{topic} has no partition {partition}: it has 0 to {len(found.partitions) - 1}")
    return str(found.name)


def _make_topic(admin: AdminClient, link: Link, topic: str, create: bool, why: str) -> None:
    if create:
        result_of(admin.create_topics([admin_api().NewTopic(topic)])[topic], link, f"create {topic}")
    elif not ask_for_topic(admin, link, topic):
        raise CliError(f"{why}; create it with: clarion topic create {topic}")
    show_notice(f"{why}; created it")


def _check_choice(flag: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise UsageError(f"{flag} {value}: choose one of {', '.join(choices)}")


@contextmanager
def _opened(file: str) -> Iterator[IO[bytes]]:
    if file == "-":
        if sys.stdin.isatty():
            show_notice("type one message per line; Ctrl-D ends")
        yield sys.stdin.buffer
        return
    try:
        source = Path(file).open("rb")  # noqa: SIM115 (closed below)
    except OSError as error:
        raise CliError(f"cannot read {file}: {error.strerror}") from error
    with source:
        yield source


@contextmanager
def _progress(source: IO[bytes]) -> Iterator[Callable[[int], None]]:
    """A bar over the bytes of a file; nothing for pipes, or where nobody looks."""
    if source is sys.stdin.buffer or not sys.stderr.isatty():
        yield lambda _: None
        return
    from clarion.cli.progress import byte_bar

    with byte_bar("sending", Path(source.name).stat().st_size) as advance:
        yield advance
