"""`clarion log dump`: what is in a segment file, batch by batch, and where it is damaged. Changes nothing."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clarion.cli.errors import CliError, UsageError
from clarion.cli.link import JsonOption
from clarion.cli.message import TextMessage, to_json
from clarion.cli.table import clean, json_text
from clarion.cli.units import bytes_text, plural, time_text
from clarion.model.errors import KafkaError

if TYPE_CHECKING:
    from clarion.log.dump import DamagedRest, DumpedBatch

commands = typer.Typer(help="Look into the files of the log.")

_BATCH_LINE = "{position:>12}  {first:>12}  {last:>12}  {records:>7}  {size:>9}  {codec:<6}  {time:<23}  {more}"
_SHOWN_MAX = 60  # characters of a key or a value on a line


def add_to(app: typer.Typer) -> None:
    app.add_typer(commands, name="log")


@commands.callback()
def log() -> None:
    pass  # with a callback Typer keeps `dump` a command of its own although it is the only one


@commands.command()
def dump(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A .log file, or a partition's folder.")],
    records: Annotated[bool, typer.Option("--records", "-r", help="Show keys and values too.")] = False,
    maximum: Annotated[int | None, typer.Option("--max", "-n", metavar="N", help="Only the first N batches.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Show every batch of a segment. Exit status 1, and where, if something is damaged.

    Example:

        clarion log dump clarion-data/orders-0/00000000000000000000.log --records
    """
    if maximum is not None and maximum < 1:
        raise UsageError(f"--max {maximum}: at least 1")
    tally = Tally()
    for path in _segments(file):
        if not as_json:
            print(f"{path} ({bytes_text(path.stat().st_size)})")
            print(_head())
        _dump_file(path, tally, records, maximum, as_json)
    if not as_json:
        print(tally.sentence())
    if tally.damages:
        raise CliError(f"{plural(len(tally.damages), 'damaged place')}; the first: {tally.damages[0]}")


class Tally:
    """What went by."""

    def __init__(self) -> None:
        self.batches = 0
        self.records = 0
        self.damages: list[str] = []

    def add(self, header: Any) -> None:
        self.batches += 1
        self.records += max(header.record_count, 0)

    def sentence(self) -> str:
        state = "no damage" if not self.damages else f"{plural(len(self.damages), 'damaged place')}"
        return (
            f"{plural(self.batches, 'batch').replace('batchs', 'batches')}, {plural(self.records, 'record')}, {state}"
        )


def _segments(file: str) -> Iterator[Path]:
    path = Path(file)
    if path.is_dir():
        found = sorted(path.glob("*.log"))
        if not found:
            raise CliError(f"there is no .log file in {file}; give a partition's folder, such as DATA/orders-0")
        yield from found
    elif not path.is_file():
        raise CliError(f"there is no file {file}")
    elif path.suffix != ".log":
        raise CliError(f"{file} is not a segment; its name ends with .log")
    else:
        yield path


def _dump_file(path: Path, tally: Tally, records: bool, maximum: int | None, as_json: bool) -> None:
    from clarion.log.dump import DamagedRest, dump_segment
    from clarion.world import RealDisk

    show = _show_json if as_json else _show_text
    for number, one in enumerate(_readable(dump_segment(RealDisk(), os.fspath(path)), path), 1):
        if one.damage:
            tally.damages.append(f"{path.name} at byte {one.position:,}: {one.damage}")
        if not isinstance(one, DamagedRest):
            tally.add(one.header)
        show(path, one, records)
        if number == maximum:
            return


def _readable(found: Iterator[DumpedBatch | DamagedRest], path: Path) -> Iterator[DumpedBatch | DamagedRest]:
    try:
        yield from found
    except OSError as error:
        raise CliError(f"cannot read {path}: {error.strerror}") from error


def _head() -> str:
    return _BATCH_LINE.format(
        position="POSITION", first="FIRST", last="LAST", records="RECORDS", size="SIZE", codec="CODEC",
        time="NEWEST", more="",
    ).rstrip()  # fmt: skip


def _show_text(_: Path, one: DumpedBatch | DamagedRest, records: bool) -> None:
    from clarion.log.dump import DamagedRest

    if isinstance(one, DamagedRest):
        print(f"{one.position:>12}  DAMAGED: {one.damage}; {plural(one.length, 'byte')} cannot be read")
        return
    header = one.header
    line = _BATCH_LINE.format(
        position=one.position, first=header.base_offset, last=header.last_offset, records=header.record_count,
        size=bytes_text(header.size_bytes), codec=one.codec, time=time_text(header.max_timestamp), more=_marks(one),
    )  # fmt: skip
    print(line.rstrip())
    if records:
        for text in _record_lines(one):
            print(text)


def _marks(batch: DumpedBatch) -> str:
    header = batch.header
    words = [f"epoch {header.leader_epoch}"]
    if header.has_producer:
        words.append(f"producer {header.producer_id}/{header.producer_epoch} sequence {header.base_sequence}")
    if header.is_transactional:
        words.append("transactional")
    if header.is_control:
        words.append("control")
    if batch.damage:
        words.append(f"DAMAGED: {batch.damage}")
    return ", ".join(words)


def _record_lines(batch: DumpedBatch) -> Iterator[str]:
    try:
        found = batch.records()
    except KafkaError as error:
        yield f"{'':>14}its records cannot be read: {error.message}"
        return
    for record in found:
        headers = "".join(f" {name}:{_shown(value)}" for name, value in record.headers)
        yield f"{record.offset:>26}  {_shown(record.key)} = {_shown(record.value)}{headers}"


def _shown(data: bytes | None) -> str:
    if data is None:
        return "null"
    text = clean(data[: _SHOWN_MAX * 4].decode("utf-8", "backslashreplace"))
    return text if len(text) <= _SHOWN_MAX else text[: _SHOWN_MAX - 1] + "…"


def _show_json(path: Path, one: DumpedBatch | DamagedRest, records: bool) -> None:
    from clarion.log.dump import DamagedRest

    fields: dict[str, Any] = {"file": path.name, "position": one.position, "damage": one.damage or None}
    if isinstance(one, DamagedRest):
        fields["length"] = one.length
    else:
        fields |= {"codec": one.codec, **one.header._asdict()}
        if records:
            fields["records"] = _json_records(one)
    print(json_text(fields))


def _json_records(batch: DumpedBatch) -> list[Any] | None:
    try:
        found = batch.records()
    except KafkaError:
        return None
    return [json.loads(to_json(TextMessage(each.key, each.value, each.headers, None, each.timestamp, "", each.offset)))
            for each in found]  # fmt: skip
