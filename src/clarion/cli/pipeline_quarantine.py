"""`clarion pipeline quarantine …`: what pipelines could not read, one record whole, and the way back.

A quarantine is a topic; its records have the original's key and value, and say in headers why they are there and where
they were (`clarion.pipeline.quarantine`).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clarion.cli.errors import CliError, UsageError
from clarion.cli.link import BootstrapOption, JsonOption, Link
from clarion.cli.message import for_terminal, to_json
from clarion.cli.quarantine_topic import RECORDS_MAX, BadRecord, QuarantineTopic, parse_place, quarantines, unique
from clarion.cli.table import Column, clean, show_json, show_notice, show_rows
from clarion.cli.units import count_text, plural, time_text

if TYPE_CHECKING:
    from clarion.pipeline.definition import Pipeline

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The pipeline, or its quarantine's topic.")]
PlacesArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="[PLACE…]", help="Only these: offset, or partition:offset, as `list` shows them."),
]


def add_to(app: typer.Typer) -> None:
    group = typer.Typer(
        help="Records that pipelines could not read: look at them, send them back.", no_args_is_help=True
    )
    group.command("list")(list_records)
    group.command("show")(show)
    group.command("redrive")(redrive)
    app.add_typer(group, name="quarantine")


def list_records(
    context: typer.Context,
    name: Annotated[
        str | None,
        typer.Argument(metavar="[NAME]", help="The pipeline, or its quarantine's topic. Default: count all."),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=RECORDS_MAX, help="The last so many.")] = 50,
    as_json: JsonOption = False,
    bootstrap: BootstrapOption = None,
) -> None:
    """List the quarantines of a broker, or the records in one: where each was, and what was wrong with it."""
    link = Link.of(context, bootstrap)
    if name is None:
        _list_topics(link, as_json)
        return
    with QuarantineTopic(link, name) as quarantine:
        records = unique(quarantine.last(limit))
    rows = [
        {
            "place": each.place,
            "time": each.message.timestamp_ms,
            "origin": "{}-{} at {}".format(*each.origin),
            "pipeline": each.header("pipeline"),
            "reason": each.header("reason"),
            "redriven": each.is_redriven,
        }
        for each in records
    ]
    columns = [
        Column("place", "PLACE", style="cyan"),
        Column("time", "SINCE", time_text),
        Column("origin", "CAME FROM"),
        Column("redriven", "REDRIVEN", lambda yes: "yes" if yes else ""),
        Column("reason", "REASON"),
    ]
    show_rows(rows, columns, as_json=as_json, none=f"{quarantine.topic} is empty")


def show(
    context: typer.Context,
    name: NameArgument,
    place: Annotated[str, typer.Argument(metavar="PLACE", help="Offset, or partition:offset, as `list` shows it.")],
    only_value: Annotated[bool, typer.Option("--value", help="Only the value, byte for byte.")] = False,
    as_json: JsonOption = False,
    bootstrap: BootstrapOption = None,
) -> None:
    """Show one bad record whole: why it is here, where it was, its key and its value."""
    with QuarantineTopic(Link.of(context, bootstrap), name) as quarantine:
        record = quarantine.at(parse_place(place))
    message = record.message
    if as_json:
        print(to_json(message))
    elif only_value:
        sys.stdout.buffer.write(message.value or b"")
        sys.stdout.buffer.flush()
    else:
        for key, value in message.headers:
            print(f"{key.removeprefix('clarion.') + ':':<11} {clean((value or b'').decode(errors='replace'))}")
        for label, data in (("key", message.key), ("value", message.value)):
            print(f"{label + ':':<11} {'(none)' if data is None else for_terminal(data).decode(errors='replace')}")


def redrive(
    context: typer.Context,
    name: NameArgument,
    places: PlacesArgument = None,
    into: Annotated[
        str | None, typer.Option("--into", metavar="TOPIC", help="Another topic. Default: the one they came from.")
    ] = None,
    through: Annotated[
        Path | None,
        typer.Option(
            "--through", metavar="FILE", help="Not into a topic but through the pipeline of this file, as a batch."
        ),
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Those too that were redriven before.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: JsonOption = False,
    bootstrap: BootstrapOption = None,
) -> None:
    """Send bad records back: into the topic they came from, or (--through) once more through their pipeline.

    Into the topic means that every reader of it sees them again. Through the pipeline means that only its targets get
    the rows: for pipelines that work row by row, as a batch knows nothing of the stream's windows and state.
    """
    if through is not None and (into is not None or places):
        raise UsageError("--through takes every record that was not redriven yet: leave out --into and places")
    link = Link.of(context, bootstrap)
    with QuarantineTopic(link, name) as quarantine:
        chosen = [parse_place(each) for each in places or ()]
        records = [] if through else _chosen(quarantine, chosen, again)
        count = quarantine.count_waiting(again=again) if through else len(records)
        where = f"through {through}" if through else f"into {into or 'the topics they came from'}"
        if count and not yes and not typer.confirm(f"Send {plural(count, 'record')} {where}?"):
            raise CliError("nothing was sent")
        cut: list[BadRecord] = []
        if through is not None and count:
            _through(pipeline_of(quarantine.topic, through), quarantine, link, again)
        elif records:
            cut = quarantine.send(records, into)
        if count and not chosen:
            quarantine.remember()
    count -= len(cut)
    result = {"quarantine": quarantine.topic, "redriven": count, "truncated": [each.place for each in cut]}
    if as_json:
        show_json(result)
    else:
        show_notice(f"sent {plural(count, 'record')} {where}")
    if cut:
        raise CliError(f"{plural(len(cut), 'record')} cut off in the quarantine, and the whole one is gone: "
                       f"{', '.join(each.place for each in cut[:5])}")  # fmt: skip


def _chosen(quarantine: QuarantineTopic, places: Sequence[tuple[int, int]], again: bool) -> list[BadRecord]:
    return unique([quarantine.at(each) for each in places] if places else quarantine.waiting(again=again))


def _list_topics(link: Link, as_json: bool) -> None:
    rows = []
    for name in quarantines(link):
        with QuarantineTopic(link, name) as quarantine:
            rows.append({"quarantine": name, "records": quarantine.count, "waiting": quarantine.count_waiting()})
    columns = [
        Column("quarantine", "QUARANTINE", style="cyan"),
        Column("records", "RECORDS", count_text, right=True),
        Column("waiting", "NOT REDRIVEN", count_text, right=True),
    ]
    show_rows(rows, columns, as_json=as_json, none="there are no quarantines")


def pipeline_of(topic: str, path: Path) -> Pipeline:
    """The pipeline of the file that this quarantine belongs to, reading it instead of its topic."""
    from clarion.pipeline.loading import LoadError, load_files
    from clarion.pipeline.topic_reference import TopicReference

    try:
        pipelines = load_files([path])
    except LoadError as error:
        raise CliError(str(error)) from error
    for each in pipelines:
        sources = [source for source in each.reads if isinstance(source, TopicReference)]
        if any(source.quarantine_for(each.name) == topic for source in sources):
            if len(sources) != 1:
                raise CliError(f"pipeline {each.name} reads several topics: redrive into the topic instead")
            reads = tuple(
                replace(source, names=(topic,), pattern=None, quarantine=topic) if source is sources[0] else source
                for source in each.reads
            )
            return replace(each, name=f"{each.name}.redrive", reads=reads)
    raise CliError(f"{path}: none of its pipelines has the quarantine {topic}")


def _through(one: Pipeline, quarantine: QuarantineTopic, link: Link, again: bool) -> None:
    import json
    from tempfile import TemporaryDirectory

    from clarion.cli.pipeline_options import connector_options
    from clarion.cli.pipeline_performance import perform
    from clarion.pipeline.definition import BATCH, Plan

    begin, end = quarantine.range(again=again)
    with TemporaryDirectory(prefix="clarion-redrive-") as aside:
        plan = Plan(
            link.bootstrap, BATCH, connector_options(link),
            starting={"startingOffsets": json.dumps({quarantine.topic: begin})},
            ending={"endingOffsets": json.dumps({quarantine.topic: end})},
            state_dir=Path(aside), must_wait=False,
        )  # fmt: skip
        if not perform([one], plan):
            raise CliError("stopped before it was through: nothing counts as redriven, and some rows may be written")
