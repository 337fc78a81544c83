"""What a pipeline is: a function from DataFrames to one DataFrame, with its sources and its targets by name.

    @pipeline(
        reads=topic("logs", json="ts timestamp, level string"),
        writes=[topic("errors", key="level"), table("lake/errors")],
    )
    def errors(logs):
        return logs.where("level = 'ERROR'")

The decorator checks what can be checked without a broker, and gives a `Pipeline` that the runner plays as a stream (one
query, one checkpoint) or as a batch. Nothing here imports pyspark before something is loaded or written.

`PipelineSource` and `PipelineTarget` are all the runner knows of topics and tables. A pipeline with one target is that
target's own streaming query (`start`). With several it is one query too, whose every micro-batch goes to each target in
turn (`write` with its `MicroBatch`): all targets see the same batches, late rows are late for all of them, the topic is
read once and the state kept once. A batch that is played again after a crash has the same `MicroBatch`; a target that
remembers it (tables do) holds each row exactly once, one that cannot (topics, today) gets it at least once.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from clarion.pipeline.intervals import why_no_interval

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

STREAM, ONCE, BATCH = "stream", "once", "batch"
DEFAULT_STATE_DIR = Path("clarion-pipelines")
OUTPUT_MODES = ("append", "update", "complete")
_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]{0,99}")  # it becomes a folder, a group id and a metric label


class DefinitionError(Exception):
    """A pipeline that cannot be run as it is written: one line that says what to change."""


class RunRefusedError(Exception):
    """A run that cannot begin as it was asked for."""


@dataclass(frozen=True, slots=True)
class RunSettings:
    """What every source and target of one run shares."""

    name: str
    bootstrap: str
    client: Mapping[str, str] = field(default_factory=dict)  # connector options for every topic: TLS and the like
    starting: Mapping[str, str] = field(default_factory=dict)  # connector options that say where a new pipeline begins
    ending: Mapping[str, str] = field(default_factory=dict)  # the same for where a batch ends
    may_split: bool = False  # no target keeps the order of a partition, so that several tasks may read one
    reads: tuple[PipelineSource, ...] = ()
    has_several_sources: bool = False  # topics that Spark asks for news one after the other
    observations: dict[str, Any] = field(default_factory=dict, compare=False)  # what a batch counted on its way

    @property
    def group(self) -> str:
        """Under this name the broker shows the pipeline's lag."""
        return f"clarion-pipeline-{self.name}"


@dataclass(frozen=True, slots=True)
class Plan:
    """How pipelines are to be run."""

    bootstrap: str
    how: str = STREAM
    client: Mapping[str, str] = field(default_factory=dict)
    starting: Mapping[str, str] | None = None  # None: from the earliest, or wherever the checkpoint says
    ending: Mapping[str, str] = field(default_factory=dict)
    state_dir: Path = DEFAULT_STATE_DIR
    checkpoints: str | None = None  # another place for checkpoints: what every machine of a cluster can reach
    master: str | None = None
    config: Mapping[str, str] = field(default_factory=dict)
    must_wait: bool = True  # for a broker or a topic that is not there yet; else that is a failure
    restarts: bool = False  # what fails is started again, if that may help


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """A batch of a query that has a checkpoint: the same pair again means the same rows again."""

    query_id: str
    batch_id: int


@dataclass(frozen=True, slots=True)
class QuerySettings:
    """What a pipeline's streaming query is called, and how it runs."""

    name: str
    checkpoint: str
    output_mode: str
    trigger: Mapping[str, Any]  # for `DataStreamWriter.trigger`; empty: as soon as there is data

    def start(self, writer: DataStreamWriter) -> StreamingQuery:
        writer = writer.option("checkpointLocation", self.checkpoint).outputMode(self.output_mode).queryName(self.name)
        return (writer.trigger(**self.trigger) if self.trigger else writer).start()


@runtime_checkable
class PipelineSource(Protocol):
    @property
    def description(self) -> str: ...

    def missing(self, run: RunSettings) -> str | None:
        """What it still waits for; None if it can be read, and then what that needs (a quarantine topic) is there."""
        ...

    def load(self, spark: SparkSession, run: RunSettings, *, streaming: bool) -> DataFrame:
        """The rows; a source without a streaming form (a table) may give a static DataFrame for both."""
        ...


@runtime_checkable
class PipelineTarget(Protocol):
    @property
    def description(self) -> str: ...

    @property
    def output_modes(self) -> tuple[str, ...]:
        """Which output modes of a streaming query it can take."""
        ...

    @property
    def keeps_order(self) -> bool:
        """Whether messages of a partition are to arrive here in their order."""
        ...

    def prepare(self, spark: SparkSession, run: RunSettings) -> None:
        """Called once before a run: make what must exist. Safe to repeat."""
        ...

    def start(self, df: DataFrame, run: RunSettings, query: QuerySettings) -> StreamingQuery:
        """Start the query that writes a streaming DataFrame here."""
        ...

    def write(self, df: DataFrame, run: RunSettings, batch: MicroBatch | None = None) -> None:
        """Write a static DataFrame, or one micro-batch of a query; a table skips a `batch` that it already holds."""
        ...


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A checked definition. Calling it calls the function, so that a test can give it DataFrames of its own."""

    name: str
    function: Callable[..., DataFrame]
    reads: tuple[PipelineSource, ...]
    writes: tuple[PipelineTarget, ...]
    output_mode: str = "append"
    trigger: str | None = None  # time between micro-batches, e.g. "10 seconds"; None: as soon as there is data
    config: Mapping[str, str] = field(default_factory=dict)  # Spark settings this pipeline wants
    description: str = ""
    path: Path | None = None

    def __call__(self, *frames: DataFrame) -> DataFrame:
        return self.function(*frames)

    @property
    def may_wait_for_more(self) -> bool:
        """Whether a source may say that there is nothing new while there is too little for a batch."""
        options = (name.lower() for each in self.reads for name in getattr(each, "options", ()))
        return "minoffsetspertrigger" in options

    def frame(self, spark: SparkSession, run: RunSettings, *, streaming: bool) -> DataFrame:
        """The function applied to its sources."""
        result = self.function(*(each.load(spark, run, streaming=streaming) for each in self.reads))
        if not hasattr(type(result), "writeStream"):
            raise DefinitionError(
                f"pipeline {self.name}: the function gave {type(result).__name__}, not a DataFrame; "
                "is `return` missing?"
            )
        return result


def pipeline(
    *,
    reads: PipelineSource | Sequence[PipelineSource],
    writes: PipelineTarget | Sequence[PipelineTarget],
    name: str | None = None,
    mode: str = "append",
    trigger: str | None = None,
    config: Mapping[str, str] | None = None,
) -> Callable[[Callable[..., DataFrame]], Pipeline]:
    """Declare a pipeline. The function gets one DataFrame per source, in order, and returns the rows to write.

    name     what `status`, `stop` and the broker's group call it; by default the function's name
    mode     Spark's output mode: `append` (rows are final), `update` (rows that changed), `complete` (all of them)
    trigger  time between micro-batches, e.g. "10 seconds"; by default a batch starts when there is data
    config   Spark settings for its session
    """

    def declare(function: Callable[..., DataFrame]) -> Pipeline:
        if not callable(function):
            raise DefinitionError(f"@pipeline stands above a function, not above {type(function).__name__}")
        declared = Pipeline(
            name=name or str(getattr(function, "__name__", "")),
            function=function,
            reads=_several(reads, PipelineSource, "reads"),
            writes=_several(writes, PipelineTarget, "writes"),
            output_mode=mode,
            trigger=trigger,
            config=dict(config or {}),
            description=inspect.getdoc(function) or "",
            path=_path_of(function),
        )
        check(declared)
        return declared

    return declare


def check(declared: Pipeline) -> None:
    """Refuse what can be seen to be wrong without a broker and without Spark."""
    where = f"pipeline {declared.name}"
    if not _NAME.fullmatch(declared.name):
        raise DefinitionError(f"{where}: a name has up to 100 letters, digits, '.', '_' and '-'; give name=…")
    if declared.output_mode not in OUTPUT_MODES:
        raise DefinitionError(f"{where}: mode={declared.output_mode!r}; choose from {', '.join(OUTPUT_MODES)}")
    if declared.trigger and (reason := why_no_interval(declared.trigger)):
        raise DefinitionError(f"{where}: trigger: {reason}")
    _check_parameters(declared, where)
    _check_modes(declared, where)
    _check_topics(declared, where)


def texts(options: Mapping[str, Any] | None) -> dict[str, str]:
    """Options as Spark hands them on, whatever they were written as."""
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in (options or {}).items()
    }


def _several(given: Any, kind: type, parameter: str) -> tuple[Any, ...]:
    items = tuple(given) if isinstance(given, Iterable) and not isinstance(given, str) else (given,)
    if not items:
        raise DefinitionError(f"{parameter}= is empty; name at least one topic or table")
    for each in items:
        if not isinstance(each, kind):
            raise DefinitionError(f"{parameter}= takes topic(…) and table(…), not {each!r}")
    return items


def _check_parameters(declared: Pipeline, where: str) -> None:
    try:
        inspect.signature(declared.function).bind(*declared.reads)
    except TypeError as error:
        raise DefinitionError(
            f"{where}: its function must take one DataFrame per source, {len(declared.reads)} here: {error}"
        ) from error


def _check_modes(declared: Pipeline, where: str) -> None:
    for target in declared.writes:
        if declared.output_mode not in target.output_modes:
            raise DefinitionError(
                f"{where}: {target.description} cannot take mode={declared.output_mode!r}, "
                f"only {' or '.join(target.output_modes)}{_merge_hint(target)}"
            )


def _merge_hint(target: PipelineTarget) -> str:
    if getattr(target, "mode", None) != "merge":
        return ""
    return " (or say with the table's option orderBy which row of a key is the newest)"


def _check_topics(declared: Pipeline, where: str) -> None:
    from clarion.pipeline.topic_reference import refusal  # it stands on this module, so it comes late

    if reason := refusal(declared.name, declared.reads, declared.writes):
        raise DefinitionError(f"{where}: {reason}")


def _path_of(function: Callable[..., Any]) -> Path | None:
    try:
        return Path(inspect.getfile(function))
    except TypeError:
        return None
