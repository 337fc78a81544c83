"""`clarion pipeline …`: run pipelines on Spark, watch them, stop them, look into them."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clarion.cli import pipeline_quarantine
from clarion.cli.errors import CliError, UsageError
from clarion.cli.link import BootstrapOption, JsonOption, Link
from clarion.cli.pipeline_options import (
    asks_for_help,
    connector_options,
    edges,
    metrics_address,
    ready_help,
    spark_settings,
)
from clarion.cli.pipeline_performance import close_spark, open_spark, perform
from clarion.cli.table import Column, clean, show_json, show_notice, show_rows
from clarion.cli.units import duration_text
from clarion.cli.usage_errors import did_you_mean

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from clarion.pipeline.definition import Pipeline, RunSettings
    from clarion.pipeline.state_files import StateFolder

_STOP_SECONDS_MAX = 60.0  # a batch gets ten to finish; then Spark has to let go of it
_POLL_SECONDS = 0.1

WhatArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="FILE…", help="Python files with pipelines; or archive, replay, rollup, latest and their options."
    ),
]
FilesArgument = Annotated[list[Path], typer.Argument(metavar="FILE…", help="Python files with pipelines.")]
NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The pipeline.")]
StateOption = Annotated[
    Path, typer.Option("--state-dir", metavar="DIR", help="Where pipelines keep checkpoints and status.")
]
MasterOption = Annotated[
    str | None,
    typer.Option("--master", metavar="URL", help="Where Spark runs. Default: all cores here.", show_default=False),
]
ConfOption = Annotated[
    list[str] | None, typer.Option("--conf", metavar="NAME=VALUE", help="A Spark setting; repeatable.")
]
_STATE_DIR = Path("clarion-pipelines")


def add_to(app: typer.Typer) -> None:
    group = typer.Typer(help="Pipelines on Spark: run them, watch them, stop them.", no_args_is_help=True)
    # What `run` does not know may be an option of a ready-made pipeline; so `--help` may ask about one of those.
    group.command("run", context_settings={"ignore_unknown_options": True}, add_help_option=False)(run)
    for command in (list_pipelines, status, stop, reset, explain):
        group.command(command.__name__.removesuffix("_pipelines"))(command)
    pipeline_quarantine.add_to(group)
    app.add_typer(group, name="pipeline")


def run(
    context: typer.Context,
    what: WhatArgument,
    master: MasterOption = None,
    once: Annotated[bool, typer.Option("--once", help="Read what there is, then end. The next run goes on.")] = False,
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="WHERE",
            help="Where a new pipeline begins: earliest, latest, a time, -5m (ago), or offsets as JSON.",
            show_default="earliest",
        ),
    ] = None,
    end: Annotated[
        str | None,
        typer.Option("--to", metavar="WHERE", help="Run as a batch that ends here (latest, a time, offsets as JSON)."),
    ] = None,
    only: Annotated[list[str] | None, typer.Option("--only", metavar="NAME", help="Only this one; repeatable.")] = None,
    state_dir: StateOption = _STATE_DIR,
    checkpoints: Annotated[
        str | None, typer.Option(metavar="URI", help="Keep checkpoints here, where a cluster's machines reach them.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per report.")] = False,
    metrics: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Answer Prometheus here.")] = None,
    wait: Annotated[
        bool | None,
        typer.Option("--wait/--no-wait", help="Wait for a broker or topic that is not there. Default: only a stream."),
    ] = None,
    restart: Annotated[
        bool, typer.Option("--restart", help="Start a pipeline again that failed, unless that cannot help.")
    ] = False,
    conf: ConfOption = None,
    bootstrap: BootstrapOption = None,
) -> None:
    """Run every pipeline of the files, as streams, until Ctrl-C. A restart goes on exactly where it was.

    Examples:

        clarion pipeline run errors.py
        clarion pipeline run errors.py --from -1h --to latest
        clarion pipeline run archive --topic events --table lake/events
    """
    from clarion.pipeline.definition import Plan

    if once and end is not None:
        raise UsageError("--once and --to exclude each other: --once goes on from the checkpoint, --to is a batch")
    if asks_for_help([*what, *(word for word in (start, end) if word)]):
        _show_help(context, what[0])
        return
    _need_spark()
    _refuse_connect(master)
    link = Link.of(context, bootstrap)
    pipelines, is_batch = _asked_for(what, only)
    how = "batch" if is_batch or end is not None else "once" if once else "stream"
    if restart and how == "batch":
        raise UsageError("--restart is for streams: a batch that failed has no checkpoint, and would write rows again")
    if is_batch and (start is not None or end not in (None, "latest")):
        raise UsageError(f"{what[0]} goes by the messages' time: --since and --until instead of --from and --to")
    starting, ending = edges(start, end, time.time_ns() // 1_000_000, is_batch=how == "batch")
    plan = Plan(
        bootstrap=link.bootstrap,
        how=how,
        client=connector_options(link),
        starting=starting,
        ending=ending,
        state_dir=state_dir,
        checkpoints=checkpoints,
        master=master,
        config=spark_settings(conf),
        must_wait=how == "stream" if wait is None else wait,
        restarts=restart,
    )
    if not perform(pipelines, plan, as_json=as_json, metrics=metrics_address(metrics)) and how == "batch":
        raise CliError("stopped before it was through: some rows may be written, and the next run begins anew")


def list_pipelines(files: FilesArgument, as_json: JsonOption = False) -> None:
    """List the pipelines in files: what each reads, writes and does."""
    _need_spark()
    rows = [
        {
            "pipeline": each.name,
            "reads": ", ".join(source.description for source in each.reads),
            "writes": ", ".join(target.description for target in each.writes),
            "mode": each.output_mode,
            "what": each.description.partition("\n")[0],
        }
        for each in _load(files)
    ]
    columns = [
        Column("pipeline", "PIPELINE", style="cyan"),
        Column("reads", "READS"),
        Column("writes", "WRITES"),
        Column("mode", "MODE"),
        Column("what", "WHAT"),
    ]
    show_rows(rows, columns, as_json=as_json)


def status(
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME…]", help="Only these.")] = None,
    state_dir: StateOption = _STATE_DIR,
    as_json: JsonOption = False,
) -> None:
    """Show how pipelines do, or how their last run went."""
    from rich.console import Console

    from clarion.pipeline.state_files import state_folders
    from clarion.pipeline.view import card, line

    folders = [_known(state_dir, name) for name in names] if names else state_folders(state_dir)
    rows = [_status_row(each) for each in folders]
    if as_json:
        show_json(rows)
    elif not rows:
        print(f"no pipeline has been run with {state_dir}")
    elif sys.stdout.isatty():
        Console().print(*(card(each) for each in rows), sep="\n")
    else:
        print("\n".join(clean(line(each)) for each in rows))


def stop(name: NameArgument, state_dir: StateOption = _STATE_DIR) -> None:
    """Stop a running pipeline; others of the same process go on. Its next run goes on where it was."""
    folder = _known(state_dir, name)
    pid = folder.pid()
    if pid is None:
        show_notice(f"{name} is not running")
        return
    folder.request_stop()
    deadline = time.monotonic() + _STOP_SECONDS_MAX
    while folder.pid() is not None and folder.read_status().get("state") not in ("stopped", "ended", "failed"):
        if time.monotonic() > deadline:
            raise CliError(f"{name} did not stop in {duration_text(_STOP_SECONDS_MAX * 1000)}; its process is {pid}")
        time.sleep(_POLL_SECONDS)
    show_notice(f"stopped {name}")


def reset(
    context: typer.Context,
    name: NameArgument,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    state_dir: StateOption = _STATE_DIR,
    conf: ConfOption = None,
    bootstrap: BootstrapOption = None,
) -> None:
    """Forget where a pipeline was: its next run begins at --from. What it has written stays.

    A checkpoint on another file system (hdfs:, s3a:, …) is deleted through Spark, with the settings of --conf.
    """
    from clarion.pipeline.state_files import CheckpointAwayError, PipelineRunningError

    folder = _known(state_dir, name)
    if not yes and not typer.confirm(f"Forget where {name} was? Its next run writes its rows again."):
        raise CliError("nothing was changed")
    try:
        before = folder.read_status()
        _reset(folder, spark_settings(conf))
    except (PipelineRunningError, CheckpointAwayError) as error:
        raise CliError(str(error)) from error
    _forget_group(Link.of(context, bootstrap or before.get("bootstrap")), name)
    show_notice(f"{name} begins anew with its next run")


def _reset(folder: StateFolder, config: dict[str, str]) -> None:
    if not folder.is_far:
        folder.reset()
        return
    _need_spark()
    from clarion.pipeline.spark_session import quiet_spark

    with TemporaryDirectory() as aside, quiet_spark(Path(aside) / "spark.log"):
        folder.look_through(open_spark([], "local[1]", config))
    try:
        folder.reset()
    finally:
        close_spark()


def explain(
    context: typer.Context,
    files: FilesArgument,
    only: Annotated[list[str] | None, typer.Option("--only", metavar="NAME", help="Only this one; repeatable.")] = None,
    extended: Annotated[bool, typer.Option("--extended", help="The logical plans too.")] = False,
    master: MasterOption = None,
    conf: ConfOption = None,
    bootstrap: BootstrapOption = None,
) -> None:
    """Show how Spark would run the pipelines. Nothing is read, written or started."""
    _need_spark()
    from clarion.pipeline.definition import RunSettings
    from clarion.pipeline.spark_session import quiet_spark

    _refuse_connect(master)
    link = Link.of(context, bootstrap)
    pipelines = _chosen(_load(files), only)
    with TemporaryDirectory() as folder, quiet_spark(Path(folder) / "spark.log"):
        spark = open_spark(pipelines, master, spark_settings(conf))
    try:
        for each in pipelines:
            ends = [", ".join(end.description for end in ends) for ends in (each.reads, each.writes)]
            print(f"{each.name}: {' → '.join(ends)} ({each.output_mode})")
            run = RunSettings(each.name, link.bootstrap, connector_options(link), {"startingOffsets": "earliest"})
            _explain(each, spark, run, extended)
    finally:
        close_spark()


def _explain(one: Pipeline, spark: SparkSession, run: RunSettings, extended: bool) -> None:
    from clarion.pipeline.loading import told

    try:
        one.frame(spark, run, streaming=True).explain(extended)
    except Exception as error:
        raise CliError(told(error, one)) from error


def _asked_for(words: Sequence[str], only: Sequence[str] | None) -> tuple[list[Pipeline], bool]:
    """The pipelines of files, or a ready-made one; and whether it has no streaming form."""
    from clarion.pipeline.ready import REGISTRY

    if words[0] in REGISTRY and not Path(words[0]).exists():
        of_its_own = [part for each in only or () for part in ("--only", each)]
        return [_ready_made(words[0], [*words[1:], *of_its_own])], REGISTRY[words[0]].is_batch
    if not words[0].startswith("-") and not words[0].endswith(".py") and not Path(words[0]).exists():
        names = did_you_mean(words[0], REGISTRY) or f" ({', '.join(REGISTRY)})"
        raise UsageError(f"{words[0]} is neither a file nor a ready-made pipeline{names}")
    for word in words:
        if word.startswith("-"):
            raise UsageError(f"No such option: {word} (see `clarion pipeline run --help`)")
    return _chosen(_load([Path(each) for each in words]), only), False


def _show_help(context: typer.Context, word: str) -> None:
    from clarion.pipeline.ready import REGISTRY

    print(ready_help(REGISTRY[word]) if word in REGISTRY else context.get_help())


def _need_spark() -> None:
    """Whether it is installed; importing it takes a quarter of a second, and much can be refused without it."""
    if find_spec("pyspark") is None:
        raise CliError("pipelines need Spark (pyspark is missing): pip install 'clarion-broker[spark]'")


def _refuse_connect(master: str | None) -> None:
    """Before anything is loaded or asked; PySpark would say it in a page, and later."""
    from clarion.pipeline.spark_session import SparkConnectError, refuse_connect

    try:
        refuse_connect(master or os.environ.get("SPARK_REMOTE"))
    except SparkConnectError as error:
        raise UsageError(str(error)) from error


def _ready_made(name: str, words: Sequence[str]) -> Pipeline:
    from clarion.pipeline.definition import DefinitionError
    from clarion.pipeline.ready import from_words

    try:
        return from_words(name, words)
    except DefinitionError as error:
        raise UsageError(f"{error} (see `clarion pipeline run {name} --help`)") from error


def _load(files: Sequence[Path]) -> list[Pipeline]:
    from clarion.pipeline.loading import LoadError, load_files

    try:
        return load_files(files)
    except LoadError as error:
        raise CliError(str(error)) from error


def _chosen(pipelines: list[Pipeline], only: Sequence[str] | None) -> list[Pipeline]:
    names = [each.name for each in pipelines]
    for name in only or ():
        if name not in names:
            raise UsageError(f"--only {name}: there is no such pipeline, only {', '.join(names)}")
    return [each for each in pipelines if not only or each.name in only]


def _known(state_dir: Path, name: str) -> StateFolder:
    from clarion.pipeline.state_files import StateFolder, state_folders

    if (folder := StateFolder(state_dir, name)).exists:
        return folder
    known = ", ".join(each.name for each in state_folders(state_dir)) or "none"
    raise CliError(f"no pipeline {name} has been run with {state_dir} (known: {known})")


def _status_row(folder: StateFolder) -> dict[str, Any]:
    """What the run said last; a process that died without a word was killed."""
    from clarion.pipeline.progress import PipelineProgress

    told = folder.read_status()
    pid = folder.pid()
    state = told.get("state", "new" if pid is None else "starting")
    if pid is None and state not in ("new", "stopped", "ended", "failed"):
        state = "killed"
    fresh = PipelineProgress(folder.name).as_json(0.0)
    return {"updated_ms": None, **fresh, **told, "pipeline": folder.name, "state": state, "pid": pid,
            "folder": str(folder.path)}  # fmt: skip


def _forget_group(link: Link, name: str) -> None:
    """The offsets at the broker are for people to see; a broker that is away keeps them, and that is all."""
    from clarion.pipeline.broker_link import BrokerAwayError, BrokerLink
    from clarion.pipeline.definition import RunSettings

    options = {**connector_options(link), "bootstrap.servers": link.bootstrap}
    try:
        BrokerLink(options).forget_group(RunSettings(name, link.bootstrap).group)
    except BrokerAwayError as error:
        show_notice(str(error))
