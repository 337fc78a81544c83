"""Runs pipelines: one Spark session, one query each, until they end, fail, or are asked to stop.

`Runner.run` is a loop of small looks: each `PipelineRun` says what it does next, nothing blocks for long, and the
listener (the terminal, JSON lines, metrics) is told after every look. The states of a pipeline's run:

    starting → waiting (no broker, no topic) → running → stopping → stopped   somebody asked
                                                       → ended                --once, --to: everything was read
                                                       → failed               and the others go on
                                                       → restarting → …       if it was asked for, and may help
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, TypeVar

from clarion.pipeline.broker_link import BrokerAwayError
from clarion.pipeline.definition import BATCH, ONCE, STREAM, Pipeline, Plan, QuerySettings, RunRefusedError, RunSettings
from clarion.pipeline.loading import told
from clarion.pipeline.progress import BAD_ROWS, ROWS_IN, ROWS_OUT, PipelineProgress, listener
from clarion.pipeline.queries import BatchQuery, FanOut, observed
from clarion.pipeline.restarting import TRIES_MAX, Restarts, can_be_mended
from clarion.pipeline.spark_session import forget_dead_spark, hush_accumulators, make_active, quiet_spark, tidying
from clarion.pipeline.state_files import StateFolder
from clarion.pipeline.table_reference import TableReference
from clarion.pipeline.topic_reference import TopicReference
from clarion.world.clock import SystemClock

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from clarion.pipeline.lag import LagProbe

_LOOK_SECONDS = 0.2
_STATUS_SECONDS = 1.0
_RETRY_SECONDS = 1.0
_FINISH_SECONDS_MAX = 10.0  # a batch in flight may finish so long before it is abandoned (and played again next time)
_LAST_REPORT_SECONDS_MAX = 10.0
_GONE = "Spark has died; spark.log may say of what"
_OVER = ("stopped", "ended", "failed")

ProgressListener = Callable[[Sequence[PipelineProgress]], None]
OpenSession = Callable[[Mapping[str, str]], "SparkSession"]
_End = TypeVar("_End", TopicReference, TableReference)


class Runner:
    def __init__(self, pipelines: Sequence[Pipeline], plan: Plan, tell: ProgressListener) -> None:
        self._plan = plan
        self._tell = tell
        self._has_begun = False
        self.is_stopping = False
        self.runs = [PipelineRun(each, plan) for each in pipelines]

    @property
    def progresses(self) -> list[PipelineProgress]:
        return [each.progress for each in self.runs]

    def stop(self) -> None:
        """May come at any time, from a signal handler too."""
        self.is_stopping = True

    def run(self, open_session: OpenSession) -> bool:
        """Run all pipelines to their end; whether none has failed. What is refused without Spark leaves nothing."""
        try:
            return self._run(open_session)
        finally:
            for each in () if self._has_begun else self.runs:
                each.folder.remove_if_new()

    def _run(self, open_session: OpenSession) -> bool:
        with ExitStack() as stack:
            for each in self.runs:
                each.check()
                stack.enter_context(each.folder.held())
            for each in self.runs:
                each.look_ahead()
            self._tell(self.progresses)
            try:
                if not self._is_over:
                    self._run_watched(open_session)
            finally:
                self._end()
        return all(each.state != "failed" for each in self.progresses)

    @property
    def _is_over(self) -> bool:
        return all(each.is_over for each in self.runs)

    def _run_watched(self, open_session: OpenSession) -> None:
        from clarion.pipeline.lag import PipelineLagWatch  # it brings numpy, which takes half a second

        with PipelineLagWatch([probe for each in self.runs for probe in each.probes()]):
            self._run_all(open_session)

    def _run_all(self, open_session: OpenSession) -> None:
        """Until everybody is done. A Spark that died on the way is replaced, if there is somebody to go on."""
        log, is_first = self.runs[0].folder.log, True
        self._has_begun = True
        while not self._is_over:
            try:
                with quiet_spark(log, keep=not is_first):
                    spark = open_session(self._config())
            except Exception as error:  # who stops a group of processes, as systemd does, stops the JVM too
                if not self.is_stopping:
                    raise
                self.runs[0].folder.note(error)
                return
            is_first = False
            make_active(spark)
            hush_accumulators(spark)
            reports = listener({each.name: each for each in self.progresses})
            spark.streams.addListener(reports)
            try:
                self._loop(spark)
            finally:
                with tidying():
                    spark.streams.removeListener(reports)
            if self._has_lost_spark:
                forget_dead_spark()
                for each in self.runs:
                    each.has_lost_spark = False

    @property
    def _has_lost_spark(self) -> bool:
        return any(each.has_lost_spark for each in self.runs)

    def _loop(self, spark: SparkSession) -> None:
        """Until everybody is done, or Spark is gone."""
        while not self._is_over:
            for each in self.runs:
                if self.is_stopping or each.folder.is_stop_requested:
                    each.request_stop()
                each.look(spark)
            self._tell(self.progresses)
            if self._has_lost_spark:
                return
            time.sleep(_LOOK_SECONDS)

    def _end(self) -> None:
        """Whatever happened, no query is left behind and the last status is the true one."""
        for each in self.runs:
            each.abandon()
            each.write_status()
        self._tell(self.progresses)

    def _config(self) -> dict[str, str]:
        """What the pipelines want of their session; the command line wins, two that differ are refused."""
        wanted: dict[str, tuple[str, str]] = {}
        for each in self.runs:
            for name, value in each.pipeline.config.items():
                before, other = wanted.setdefault(name, (str(value), each.pipeline.name))
                if before != str(value) and name not in self._plan.config:
                    raise RunRefusedError(
                        f"{other} wants {name}={before}, {each.pipeline.name} wants {value}: run them apart"
                    )
        return {**{name: value for name, (value, _) in wanted.items()}, **self._plan.config}


class PipelineRun:
    """One pipeline of a run."""

    def __init__(self, pipeline: Pipeline, plan: Plan) -> None:
        self.pipeline = pipeline
        tables = tuple(each.path for each in _parts(pipeline.writes, TableReference, "table"))
        self.progress = PipelineProgress(pipeline.name, may_wait_for_more=pipeline.may_wait_for_more, tables=tables)
        self.folder = StateFolder(plan.state_dir, pipeline.name, plan.checkpoints)
        self._plan = plan
        self._run = RunSettings(
            name=pipeline.name,
            bootstrap=plan.bootstrap,
            client=plan.client,
            starting=plan.starting or {"startingOffsets": "earliest"},
            ending=plan.ending,
            reads=pipeline.reads,
            may_split=not any(each.keeps_order for each in pipeline.writes),
            has_several_sources=len([each for each in pipeline.reads if not isinstance(each, TableReference)]) > 1,
        )
        self._query: StreamingQuery | BatchQuery | None = None
        self._next_look = 0.0
        self._give_up_at = float("inf")
        self._has_spark = False
        self._finishing: int | None = None
        self._ended_at = float("inf")
        self._status_at = 0.0
        self._started_ms = SystemClock().now_ms()
        self._restarts = Restarts()
        self._begun_at = 0.0
        self.has_lost_spark = False

    @property
    def is_over(self) -> bool:
        return self.progress.state in _OVER

    def check(self) -> None:
        """Refuse to begin elsewhere what has begun; one whose checkpoint is far away when Spark is there."""
        if self._plan.how == BATCH or (self.folder.is_far and not self._has_spark):
            return
        if reason := self.folder.why_not_begin(elsewhere=self._plan.starting is not None):
            raise RunRefusedError(f"pipeline {self.pipeline.name} {reason}")

    def probes(self) -> list[LagProbe]:
        """What looks at its lag; a batch has none."""
        from clarion.pipeline.lag import LagProbe

        topics = _parts(self.pipeline.reads, TopicReference, "topic")
        return [LagProbe(self.progress, topics, self._run)] if topics and self._plan.how != BATCH else []

    def look_ahead(self) -> None:
        """Ask, before Spark takes its time to start, whether there is anything to begin with."""
        try:
            self._is_ready(time.monotonic())
        except Exception as error:  # what one pipeline runs into does not end the others
            self._fail(error)
        self._next_look = 0.0

    def look(self, spark: SparkSession) -> None:
        """One step, if it is time for one."""
        now = time.monotonic()
        if self.is_over or now < self._next_look:
            return
        try:
            self._step(spark, now)
        except Exception as error:  # likewise
            self._fail(error)
        if now >= self._status_at or self.is_over:
            self.write_status()
            self._status_at = now + _STATUS_SECONDS

    def request_stop(self) -> None:
        if self.is_over or self.progress.state == "stopping":
            return
        self._give_up_at = time.monotonic() + _FINISH_SECONDS_MAX
        self._finishing = self.folder.in_flight()
        self._next_look = 0.0
        self._say("stopping")

    def abandon(self) -> None:
        with tidying():
            if self._query is not None and self._query.isActive:
                self._query.stop()
        if not self.is_over:
            self._say("stopped")

    def write_status(self) -> None:
        has_checkpoint = self._plan.how != BATCH and self._begun_at > 0
        self.folder.write_status(
            {
                **self.progress.as_json(time.monotonic()),
                "pid": os.getpid(),
                "how": self._plan.how,
                "file": str(self.pipeline.path or ""),
                "bootstrap": self._plan.bootstrap,
                "group": self._run.group,
                "checkpoint": self.folder.checkpoint_uri if has_checkpoint else self.folder.last_checkpoint,
                "started_ms": self._started_ms,
                "updated_ms": SystemClock().now_ms(),
            }
        )

    def _step(self, spark: SparkSession, now: float) -> None:
        if self.progress.state == "stopping":
            self._finish(now)
        elif self._query is not None:
            self._watch(self._query)
        elif self._is_alone(spark, now) and self._is_ready(now):
            self._begin(spark)

    def _is_alone(self, spark: SparkSession, now: float) -> bool:
        """Wait for the Spark of a run that was killed: it ends by itself, and must not see us at its checkpoint."""
        jvm: Any = spark._jvm
        own = int(jvm.java.lang.ProcessHandle.current().pid())
        if (other := self.folder.spark()) not in (None, own):
            self._wait(f"the Spark of the last run is still ending (process {other})", now)
            return False
        self.folder.note_spark(own)
        self.folder.look_through(spark)
        self._has_spark = True
        return True

    def _is_ready(self, now: float) -> bool:
        try:
            reason = next(filter(None, (each.missing(self._run) for each in self.pipeline.reads)), None)
        except BrokerAwayError as error:
            reason = str(error)
        if reason is None:
            return True
        if not self._plan.must_wait:
            raise RunRefusedError(reason)
        self._wait(reason, now)
        return False

    def _wait(self, reason: str, now: float) -> None:
        self._say("waiting", reason)
        self._next_look = now + _RETRY_SECONDS

    def _begin(self, spark: SparkSession) -> None:
        if not self.progress.restarts:
            self.check()
        for each in self.pipeline.writes:
            each.prepare(spark, self._run)
        # What this thread starts from here on runs in this pool: a query's own thread inherits it.
        spark.sparkContext.setLocalProperty("spark.scheduler.pool", self.pipeline.name)
        is_batch = self._plan.how == BATCH
        rows = self._counted(spark, streaming=not is_batch)
        self._query = BatchQuery(rows, self.pipeline.writes, self._run) if is_batch else self._start(rows)
        self._begun_at = time.monotonic()
        self._say("running")

    def _start(self, df: DataFrame) -> StreamingQuery:
        pipeline = self.pipeline
        query = QuerySettings(pipeline.name, self.folder.checkpoint_uri, pipeline.output_mode, self._trigger())
        if len(pipeline.writes) == 1:
            return pipeline.writes[0].start(df, self._run, query)
        return query.start(df.writeStream.foreachBatch(FanOut(pipeline.writes, self._run, query.checkpoint)))

    def _counted(self, spark: SparkSession, *, streaming: bool) -> DataFrame:
        from pyspark.sql import functions as F

        rows = self.pipeline.frame(spark, self._run, streaming=streaming)
        return observed(rows, ROWS_OUT, F.count(F.lit(1)), self._run)

    def _trigger(self) -> dict[str, Any]:
        if self._plan.how == ONCE:
            return {"availableNow": True}
        return {"processingTime": self.pipeline.trigger} if self.pipeline.trigger else {}

    def _observation(self, prefix: str) -> int:
        found = (each for name, each in self._run.observations.items() if name.startswith(prefix))
        return sum(int(each.get["count"]) for each in found)

    def _watch(self, query: StreamingQuery | BatchQuery) -> None:
        if query.isActive or not self._has_reported(query):
            return
        error = query.exception()
        if error is not None:
            raise error
        if self._plan.how == BATCH:
            self.progress.rows_in = self._observation(ROWS_IN)
            self.progress.rows_out = self._observation(ROWS_OUT)
            self.progress.rows_bad = self._observation(BAD_ROWS)
        self._say("stopped" if self._plan.how == STREAM else "ended")

    def _finish(self, now: float) -> None:
        """Let the batch that was in flight when we were asked end, if it does so soon; the next one may not begin."""
        is_waiting = self._finishing is not None and not self.folder.has_committed(self._finishing)
        if self._query is not None and self._query.isActive:
            if is_waiting and now < self._give_up_at:
                return
            self._query.stop()
        if self._query is None or self._has_reported(self._query):
            if self._query is not None and (error := self._query.exception()) is not None:
                raise error
            self._say("stopped")

    def _has_reported(self, query: StreamingQuery | BatchQuery) -> bool:
        """Whether the listener has told us everything; it runs behind the query, but not for long."""
        now = time.monotonic()
        self._ended_at = min(self._ended_at, now)
        is_overdue = now - self._ended_at > _LAST_REPORT_SECONDS_MAX
        return self.progress.is_complete or isinstance(query, BatchQuery) or is_overdue

    def _fail(self, error: Exception) -> None:
        self.has_lost_spark = self._has_spark and self.folder.spark() is None
        self.progress.last_error = _GONE if self.has_lost_spark else told(error, self.pipeline)
        self.folder.note(error)
        may_go_on = self._plan.restarts and self.progress.state != "stopping"
        if not may_go_on or not (self.has_lost_spark or can_be_mended(error)) or not self._restart():
            self._say("failed", self.progress.last_error)

    def _restart(self) -> bool:
        """Wait and begin again, from the checkpoint; False if there have been too many tries in a row."""
        now = time.monotonic()
        wait = self._restarts.wait_after(now - self._begun_at if self._query is not None else 0.0)
        if wait is None:
            return False
        with tidying():
            if self._query is not None and self._query.isActive:
                self._query.stop()
        self._query, self._has_spark, self._ended_at = None, False, float("inf")
        self._run.observations.clear()
        self.progress.is_complete = False
        self.progress.restarts += 1
        self._next_look = now + wait
        tries = f"try {self._restarts.tries} of {TRIES_MAX}"
        self._say("restarting", f"in {wait:.1f} s, {tries}: {self.progress.last_error}")
        return True

    def _say(self, state: str, detail: str = "") -> None:
        self.progress.state, self.progress.detail = state, detail


def _parts(ends: Sequence[Any], kind: type[_End], name: str) -> list[_End]:
    """The topics or tables of a pipeline, also where a ready-made one has wrapped them under this name."""
    return [found for each in ends if isinstance(found := getattr(each, name, each), kind)]
