"""A run of pipelines in this terminal: signals, the view, the metrics, and a Spark of its own that ends with it."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clarion.cli.errors import CliError
from clarion.cli.table import show_notice

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from clarion.pipeline.definition import Pipeline, Plan
    from clarion.pipeline.runner import Runner

_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # Ctrl-C, a supervisor, a terminal that was closed


def perform(
    pipelines: Sequence[Pipeline], plan: Plan, *, as_json: bool = False, metrics: tuple[str, int] | None = None
) -> bool:
    """Run to the end; CliError with a line for each pipeline that failed. False: somebody stopped one before that."""
    from clarion.pipeline.definition import RunRefusedError
    from clarion.pipeline.runner import Runner
    from clarion.pipeline.state_files import CheckpointAwayError, PipelineRunningError

    view = _view(plan, as_json)
    runner = Runner(pipelines, plan, view)
    _log_to(runner.runs[0].folder.log)
    try:
        with _drawn(view), _metrics(metrics, runner) as port, _stop_signals(runner):
            if port is not None and metrics is not None:
                show_notice(f"metrics at http://{metrics[0]}:{port}/metrics")
            is_good = runner.run(lambda config: open_spark(pipelines, plan.master, config, runner))
    except (RunRefusedError, PipelineRunningError, CheckpointAwayError) as error:
        raise CliError(str(error)) from error
    finally:
        close_spark()
    if not is_good:
        failed = [f"{each.name}: {each.last_error}" for each in runner.progresses if each.state == "failed"]
        raise CliError("; ".join(failed))
    return all(each.state == "ended" for each in runner.progresses)


def _metrics(address: tuple[str, int] | None, runner: Runner) -> AbstractContextManager[int | None]:
    if address is None:
        return nullcontext()
    from clarion.pipeline.metrics import served

    return served(address, runner.progresses)


def _log_to(path: Path) -> None:
    """What libraries and pipelines log goes where Spark's words go: the terminal has a view on it."""
    if not logging.getLogger().handlers:
        path.parent.mkdir(parents=True, exist_ok=True)
        logging.basicConfig(filename=path, level=logging.WARNING)


def open_spark(
    pipelines: Sequence[Pipeline], master: str | None, config: Mapping[str, str], runner: Runner | None = None
) -> SparkSession:
    from clarion.pipeline import session
    from clarion.pipeline.java import JavaMissingError
    from clarion.pipeline.spark_session import SparkMissingError

    # Workers would look for modules in this folder first, and take somebody's copy.py for Python's own.
    os.environ.setdefault("PYTHONSAFEPATH", "1")
    try:
        spark = session(config, name=f"clarion {', '.join(each.name for each in pipelines)}", master=master)
    except (JavaMissingError, SparkMissingError) as error:
        raise CliError(str(error)) from error
    if runner is not None:
        _install(runner)  # Spark has put a handler of its own there
    return spark


def close_spark() -> None:
    if "pyspark.sql" not in sys.modules:
        return  # it was never opened
    from pyspark.sql import SparkSession

    from clarion.pipeline.spark_session import tidying

    with tidying():
        if (spark := SparkSession.getActiveSession()) is not None:
            spark.stop()


def _view(plan: Plan, as_json: bool) -> Any:
    from clarion.pipeline.view import JsonLines, Lines, LiveView

    if as_json:
        return JsonLines()
    if not sys.stdout.isatty():
        return Lines()
    return LiveView(f"{plan.bootstrap} · {plan.master or 'all cores here'} · {plan.how}")


def _drawn(view: Any) -> AbstractContextManager[Any]:
    """Only what is drawn over and over has a beginning and an end."""
    return view if isinstance(view, AbstractContextManager) else nullcontext()


@contextmanager
def _stop_signals(runner: Runner) -> Iterator[None]:
    """Ctrl-C and SIGTERM ask the runner to stop; the second one does not ask."""
    numbers = _STOPPING
    previous = [signal.getsignal(each) for each in numbers]
    _install(runner)
    try:
        yield
    finally:
        for number, handler in zip(numbers, previous, strict=True):
            signal.signal(number, handler)


def _install(runner: Runner) -> None:
    def stop(*_: object) -> None:
        if runner.is_stopping:
            raise KeyboardInterrupt
        runner.stop()

    for number in _STOPPING:
        signal.signal(number, stop)
