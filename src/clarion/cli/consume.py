"""`clarion consume`: read a topic from anywhere, to the terminal, a pipe or a file."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from clarion.cli import completion
from clarion.cli.errors import CliError, UsageError
from clarion.cli.interrupt import terminate_interrupts
from clarion.cli.known_topics import describe_topic
from clarion.cli.link import BootstrapOption, Link, explain, plain_errors, poll_available
from clarion.cli.message import TEMPLATE_FIELDS, Template, TextMessage, for_terminal, to_json
from clarion.cli.offsets import Place, all_partitions, end_offsets, offsets_at, start_offsets
from clarion.cli.table import show_notice
from clarion.cli.units import parse_time_ms, plural

if TYPE_CHECKING:
    from confluent_kafka import Consumer
    from confluent_kafka.admin import AdminClient

_POLL_SECONDS = 0.1  # how soon Ctrl-C is noticed
_BATCH = 500
_LOOK_SECONDS = 5.0  # while nothing comes: between two looks whether the topic is still there
_ANSWER_SECONDS = 1.0  # to that, before it is waited for messages again


def add_to(app: typer.Typer) -> None:
    app.command()(consume)


def consume(
    context: typer.Context,
    topic: Annotated[
        str,
        typer.Argument(metavar="TOPIC", help="What to read: a topic's name or id.", autocompletion=completion.topics),
    ],
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="WHERE",
            help="start, end, an offset, a time, or -5m (ago). Default: start; with -f: end.",
            show_default=False,
        ),
    ] = None,
    partition: Annotated[
        list[int] | None, typer.Option("--partition", "-p", metavar="N", help="Only this one; repeatable.")
    ] = None,
    group: Annotated[
        str | None,
        typer.Option("--group", "-g", help="Read as a member, and commit.", autocompletion=completion.groups),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Do not stop at the end.")] = False,
    maximum: Annotated[int | None, typer.Option("--max", "-n", metavar="N", help="Stop after N messages.")] = None,
    template: Annotated[
        str, typer.Option("--format", metavar="TEXT", help=f"Fields: {' '.join(TEMPLATE_FIELDS)}.")
    ] = "{value}",
    null_marker: Annotated[str, typer.Option(metavar="TEXT", help="What stands for a null key or value.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per message.")] = False,
    output: Annotated[str, typer.Option("--output", "-o", metavar="FILE", help="- is stdout.")] = "-",
    bootstrap: BootstrapOption = None,
) -> None:
    """Read a topic: up to its end, or with -f for as long as you like.

    Examples:

        clarion consume orders --from -5m
        clarion consume orders --format '{offset} {key}={value}'
        clarion consume orders --json --max 10
    """
    if maximum is not None and maximum < 1:
        raise UsageError(f"--max {maximum}: at least 1")
    write_line = _line_writer(as_json, template, null_marker)
    link = Link.of(context, bootstrap)
    admin = link.admin()
    found = describe_topic(admin, link, topic)
    topic, places = found.name, _chosen_partitions(found, partition)
    where = start or ("end" if follow and group is None else "start")
    if group is None:
        reader = _free_reader(link, admin, topic, places, where)
    else:
        reader = _group_reader(link, topic, group, where, partition)
    if not follow:
        reader.stop_at(end_offsets(admin, link, places), start_offsets(admin, link, places))
    notice = f"waiting for messages in {topic}; Ctrl-C ends" if follow and sys.stderr.isatty() else ""
    with _opened(output) as target, terminate_interrupts():
        read = _read(reader, lambda message: target.write(write_line(message)), maximum, target.flush, notice)
    if output != "-":
        show_notice(f"wrote {plural(read, 'message')} to {output}")


@dataclass
class Reader:
    """A consumer, and where it is to stop."""

    consumer: Consumer
    link: Link
    topic: str
    in_group: bool
    ends: dict[Place, int] | None = None  # partitions still to be read to their end; None: never stop
    assigned: frozenset[Place] | None = None  # what the group gave us, once it has
    looked: float = field(default_factory=time.monotonic)  # at the topic

    def stop_at(self, ends: Mapping[Place, int], starts: Mapping[Place, int]) -> None:
        self.ends = {place: end for place, end in ends.items() if end > starts[place]}

    def is_done(self) -> bool:
        if self.ends is None:
            return False
        return not self.ends or (self.assigned is not None and self.assigned.isdisjoint(self.ends))

    def on_assign(self, _: Consumer, partitions: list[Any]) -> None:
        self.assigned = frozenset((each.topic, each.partition) for each in partitions)
        if not partitions:
            show_notice("the group has no partition left for this member")

    def messages(self) -> Iterator[Any]:
        """What one poll brings, without what lies behind the place to stop."""
        with plain_errors(self.link):
            found = poll_available(self.consumer, _BATCH, _POLL_SECONDS)
        if not found:
            self._look_at_topic()
        for each in found:
            if each.error() is not None:
                self._on_error(each)
            elif not self._is_past_end(each):
                yield each

    def _look_at_topic(self) -> None:
        """The library waits for a topic that was deleted, for ever and without a word."""
        from confluent_kafka import KafkaError, KafkaException

        if time.monotonic() - self.looked < _LOOK_SECONDS:
            return
        self.looked = time.monotonic()
        try:
            error = self.consumer.list_topics(self.topic, timeout=_ANSWER_SECONDS).topics[self.topic].error
        except KafkaException:  # nobody answers just now
            return
        if error is not None and error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise CliError(f"{self.topic} was deleted")

    def settle(self, written: list[Any]) -> None:
        """These have left us: a group need not read them again. (What a full disk kept here, it must.)"""
        if self.in_group:
            for each in written:
                self.consumer.store_offsets(each)
        written.clear()

    def _is_past_end(self, message: Any) -> bool:
        if self.ends is None:
            return False
        place = (message.topic(), message.partition())
        end = self.ends.get(place)
        if end is None or message.offset() >= end - 1:
            self.ends.pop(place, None)
        return end is None or message.offset() >= end

    def _on_error(self, message: Any) -> None:
        from confluent_kafka import KafkaError

        error = message.error()
        if error.code() == KafkaError._PARTITION_EOF:
            if self.ends is not None:
                self.ends.pop((message.topic(), message.partition()), None)
        elif not error.retriable() or error.fatal():
            if self.in_group and error.code() == KafkaError.INCONSISTENT_GROUP_PROTOCOL:
                raise CliError(
                    "no consumer can join that group: it is a queue, or its members share partitions in another way; "
                    "`clarion group describe` tells"
                )
            raise CliError(f"reading: {explain(error, self.link)}")


def _read(
    reader: Reader, write: Callable[[TextMessage], Any], maximum: int | None, flush: Callable[[], Any], notice: str
) -> int:
    count = 0
    written: list[Any] = []
    try:
        if notice:
            show_notice(notice)
        while not reader.is_done() and count != maximum:
            for each in islice(reader.messages(), None if maximum is None else maximum - count):
                write(_message(each))
                count += 1
                written.append(each)
            flush()
            reader.settle(written)
    except KeyboardInterrupt:  # Ctrl-C is how one stops following: commit, leave, and end well
        flush()
        reader.settle(written)
    finally:
        _leave(reader)
    return count


def _leave(reader: Reader) -> None:
    """Commit what was written out, and tell the group at once that we are gone."""
    with plain_errors(reader.link):
        reader.consumer.close()


def _message(each: Any) -> TextMessage:
    kind, timestamp = each.timestamp()
    return TextMessage(
        key=each.key(),
        value=each.value(),
        headers=each.headers() or (),
        partition=each.partition(),
        timestamp_ms=timestamp if kind else None,
        topic=each.topic(),
        offset=each.offset(),
    )


def _free_reader(link: Link, admin: AdminClient, topic: str, places: list[Place], where: str) -> Reader:
    """A reader on its own: no group, no commits, any place to start."""
    from confluent_kafka import TopicPartition

    starts = _start_of(link, admin, places, where)
    settings = _settings(f"clarion-cli-{os.getpid()}", "earliest")
    consumer = link.consumer({**settings, "enable.auto.commit": False})
    with plain_errors(link):
        consumer.assign([TopicPartition(*place, starts[place]) for place in places])
    return Reader(consumer, link, topic, in_group=False)


def _group_reader(link: Link, topic: str, group: str, where: str, partition: list[int] | None) -> Reader:
    if partition:
        raise UsageError("--partition and --group: a group decides itself who reads which partition")
    if where not in ("start", "end"):
        raise UsageError(f"--from {where} with --group: move the group first, with: clarion group reset {group}")
    settings = _settings(group, "earliest" if where == "start" else "latest")
    consumer = link.consumer({**settings, "enable.auto.offset.store": False})
    reader = Reader(consumer, link, topic, in_group=True)
    with plain_errors(link):
        consumer.subscribe([topic], on_assign=reader.on_assign)
    return reader


def _settings(group: str, reset: str) -> dict[str, Any]:
    return {
        "group.id": group,
        "auto.offset.reset": reset,
        "enable.partition.eof": True,
        "fetch.wait.max.ms": 100,
        "allow.auto.create.topics": False,
    }


def _start_of(link: Link, admin: AdminClient, places: list[Place], where: str) -> dict[Place, int]:
    if where == "start":
        return start_offsets(admin, link, places)
    if where == "end":
        return end_offsets(admin, link, places)
    if where.isascii() and where.isdigit() and len(where) < 12:  # as a time it would be before 1973
        return _checked_offset(link, admin, places, int(where))
    return offsets_at(admin, link, places, parse_time_ms(where, time.time_ns() // 1_000_000))


def _checked_offset(link: Link, admin: AdminClient, places: list[Place], offset: int) -> dict[Place, int]:
    """The same offset in every partition, as far as they have it."""
    starts, ends = start_offsets(admin, link, places), end_offsets(admin, link, places)
    if all(offset > end for end in ends.values()):
        raise CliError(f"--from {offset}: no partition is that long; the longest ends at {max(ends.values())}")
    return {place: min(max(offset, starts[place]), ends[place]) for place in places}


def _chosen_partitions(topic: Any, wanted: list[int] | None) -> list[Place]:
    places = all_partitions(topic)
    known = {partition for _, partition in places}
    for each in wanted or ():
        if each not in known:
            raise CliError(f"{topic.name} has no partition {each}: it has 0 to {len(known) - 1}")
    return [place for place in places if not wanted or place[1] in wanted]


def _line_writer(as_json: bool, template: str, null_marker: str) -> Callable[[TextMessage], bytes]:
    if as_json:
        return lambda message: to_json(message).encode("utf-8", "surrogatepass") + b"\n"
    fill = Template(template, null_marker)
    return lambda message: fill(message) + b"\n"


@contextmanager
def _opened(output: str) -> Iterator[IO[bytes]]:
    if output == "-":
        yield _Terminal() if sys.stdout.isatty() else sys.stdout.buffer  # type: ignore[misc]
        return
    try:
        target = Path(output).open("wb")  # noqa: SIM115 (closed below)
    except OSError as error:
        raise CliError(f"cannot write {output}: {error.strerror}") from error
    with target:
        yield target


class _Terminal:
    """Standard output as a person sees it."""

    def write(self, line: bytes) -> None:
        sys.stdout.buffer.write(for_terminal(line))

    def flush(self) -> None:
        sys.stdout.buffer.flush()
