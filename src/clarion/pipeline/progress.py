"""How a pipeline is doing: Spark's progress reports turned into a few numbers that people and monitors want.

`Reading` is one report, a pure function of Spark's JSON. `PipelineProgress` adds them up for one pipeline; it lives
from the start of a run to its end. `listener` brings Spark's reports to the progress of the query that they are
about.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from clarion.pipeline.reasons import plain_reason

BAD_ROWS = "clarion_bad_rows"  # how observations begin that count rows on their way to the quarantine
ROWS_IN = "clarion_rows_in"  # for batches: a stream is told how many rows it read
ROWS_OUT = "clarion_rows_out"
_RATE_SECONDS = 10.0  # rates are over this time: long enough to be calm, short enough to be now
_EPOCH = "1970-01-01"  # Spark's watermark before the first event


class PartitionLag(NamedTuple):
    """What of a partition waits to be read."""

    topic: str
    partition: int
    messages: int
    bytes: int | None  # about; None where it is not known
    seconds: float | None  # since the first of them was written


@dataclass(frozen=True, slots=True)
class Reading:
    """What one progress report says."""

    batch_id: int
    rows_in: int
    rows_out: int
    rows_bad: int
    batch_ms: int
    lag: int | None  # messages that the topics have and the pipeline has not read; None where no source says
    watermark: str | None
    state_rows: int
    state_bytes: int
    rows_late: int = 0  # came after the watermark had passed them, and are in no result
    ends: Mapping[tuple[str, int], int] = field(default_factory=dict)  # the next offset of every partition
    ended_ms: int | None = None


def read_report(report: Mapping[str, Any]) -> Reading:
    observed: Mapping[str, Any] = report.get("observedMetrics") or {}
    watermark = (report.get("eventTime") or {}).get("watermark")
    operators = report.get("stateOperators") or []
    return Reading(
        batch_id=int(report.get("batchId", -1)),
        rows_in=_count(report.get("numInputRows")),
        rows_out=_observed(observed, ROWS_OUT),
        rows_bad=_observed(observed, BAD_ROWS),
        batch_ms=_count((report.get("durationMs") or {}).get("triggerExecution")),
        lag=lag_of(report.get("sources") or []),
        watermark=None if not watermark or watermark.startswith(_EPOCH) else watermark,
        state_rows=sum(_count(each.get("numRowsTotal")) for each in operators),
        state_bytes=sum(_count(each.get("memoryUsedBytes")) for each in operators),
        rows_late=sum(_count(each.get("numRowsDroppedByWatermark")) for each in operators),
        ends={place: offset for each in report.get("sources") or [] for place, offset in _ends(each).items()},
        ended_ms=_ended_ms(report),
    )


def _ends(source: Mapping[str, Any]) -> dict[tuple[str, int], int]:
    found = _offsets(source.get("endOffset"))
    return {(topic, int(number)): offset for (topic, number), offset in found.items() if number.isdigit()}


def _ended_ms(report: Mapping[str, Any]) -> int | None:
    """The report has the time at which the batch began."""
    if not (began := report.get("timestamp")):
        return None
    took = _count((report.get("durationMs") or {}).get("triggerExecution"))
    return round(datetime.fromisoformat(began).timestamp() * 1000) + took


def lag_of(sources: list[Mapping[str, Any]]) -> int | None:
    """The sum over partitions of (latest − end), for the sources that say both."""
    lags = [
        _distance(_offsets(each.get("endOffset")), _offsets(each.get("latestOffset")))
        for each in sources
        if each.get("endOffset") and each.get("latestOffset")
    ]
    return sum(lags) if lags else None


@dataclass
class PipelineProgress:
    """One pipeline from the start of its run to its end."""

    name: str
    state: str = "starting"  # starting, waiting, running, restarting, stopping; then stopped, ended or failed
    detail: str = ""  # what it waits for, or why it failed or starts again
    rows_in: int = 0
    rows_out: int = 0
    rows_bad: int = 0
    rows_late: int = 0
    batches: int = 0
    restarts: int = 0
    last: Reading | None = None
    last_error: str = ""
    lag: int | None = None
    lags: tuple[PartitionLag, ...] = ()
    tables: tuple[str, ...] = ()  # that it writes
    written_ms: int | None = None  # when it last had rows for its targets
    may_wait_for_more: bool = False  # minOffsetsPerTrigger: Spark hears of no news while there are too few
    is_complete: bool = False  # the query's last report has come: reports come a little later than what they tell
    _recent: deque[tuple[float, int, int]] = field(default_factory=lambda: deque(maxlen=1000))

    def add(self, reading: Reading, now: float) -> None:
        self.rows_in += reading.rows_in
        self.rows_out += reading.rows_out
        self.rows_bad += reading.rows_bad
        self.rows_late += reading.rows_late
        self.batches += 1 if self.last is None or reading.batch_id != self.last.batch_id else 0
        self.last, self.lag = reading, reading.lag
        if reading.rows_out:
            self.written_ms = reading.ended_ms
        self._recent.append((now, reading.rows_in, reading.rows_out))

    def idle(self) -> None:
        """A trigger found nothing new: whatever there was has been read; unless it waits for more, then nobody says."""
        if self.lag is not None:
            self.lag = None if self.may_wait_for_more else 0

    def tell_lag(self, lags: Iterable[PartitionLag] | None) -> None:
        """What the brokers say; None if they do not answer, or not all of them."""
        self.lags = tuple(lags or ())
        if lags is None:
            self.lag = None
        elif self.lags:
            self.lag = sum(each.messages for each in self.lags)

    @property
    def lag_bytes(self) -> int | None:
        known = [each.bytes for each in self.lags if each.bytes is not None]
        return sum(known) if known else None

    @property
    def lag_seconds(self) -> float | None:
        behind = [each for each in self.lags if each.messages]  # if nobody knows since when, it is not nought
        return max((each.seconds for each in behind or self.lags if each.seconds is not None), default=None)

    def rates(self, now: float) -> tuple[float, float]:
        """Rows in and out per second, over the last few seconds. Spark's reports come meanwhile, in another thread, and
        Prometheus asks in a third: a copy is looked at, and nothing is taken out."""
        recent = [each for each in self._recent.copy() if now - each[0] <= _RATE_SECONDS]
        return sum(each[1] for each in recent) / _RATE_SECONDS, sum(each[2] for each in recent) / _RATE_SECONDS

    def as_json(self, now: float) -> dict[str, Any]:
        rate_in, rate_out = self.rates(now)
        last = self.last
        return {
            "pipeline": self.name,
            "state": self.state,
            "detail": self.detail,
            "batch": last.batch_id if last else None,
            "batches": self.batches,
            "rows_in": self.rows_in,
            "rows_out": self.rows_out,
            "rows_in_per_second": round(rate_in, 1),
            "rows_out_per_second": round(rate_out, 1),
            "lag": self.lag,
            "lag_bytes": self.lag_bytes,
            "lag_seconds": self.lag_seconds,
            "partitions": [each._asdict() for each in self.lags],
            # What a batch read is in the table when the batch is done: a table is as far behind as its pipeline.
            "tables": [
                {"table": each, "behind_seconds": self.lag_seconds, "written_ms": self.written_ms}
                for each in self.tables
            ],
            "batch_ms": last.batch_ms if last else None,
            "watermark": last.watermark if last else None,
            "state_rows": last.state_rows if last else 0,
            "state_bytes": last.state_bytes if last else 0,
            "quarantined": self.rows_bad,
            "late": self.rows_late,
            "restarts": self.restarts,
            "last_error": self.last_error,
        }


def listener(progresses: Mapping[str, PipelineProgress]) -> Any:
    """A StreamingQueryListener that feeds each report to the pipeline whose query has that name."""
    from pyspark.sql.streaming.listener import StreamingQueryListener

    class Reports(StreamingQueryListener):
        def __init__(self) -> None:
            self._names: dict[str, str] = {}

        def onQueryStarted(self, event: Any) -> None:
            self._names[str(event.id)] = event.name

        def onQueryProgress(self, event: Any) -> None:
            if found := progresses.get(event.progress.name):
                found.add(read_report(json.loads(event.progress.json)), time.monotonic())

        def onQueryIdle(self, event: Any) -> None:
            if found := progresses.get(self._names.get(str(event.id), "")):
                found.idle()

        def onQueryTerminated(self, event: Any) -> None:
            if found := progresses.get(self._names.pop(str(event.id), "")):
                found.is_complete = True
                if event.exception:
                    found.last_error = plain_reason(event.exception)

    return Reports()


def _count(value: Any) -> int:
    return max(int(value), 0) if isinstance(value, int | float) else 0


def _observed(metrics: Mapping[str, Any], prefix: str) -> int:
    return sum(_count(_first(row)) for name, row in metrics.items() if name.startswith(prefix))


def _first(row: Any) -> Any:
    """The one value of an observation's row, which comes as {name: value} or as a list."""
    values = list(row.values()) if isinstance(row, Mapping) else list(row or ())
    return values[0] if values else 0


def _offsets(text: Any) -> dict[tuple[str, str], int]:
    """Spark hands a source's own JSON through, as a string or as an object: {topic: {partition: offset}}."""
    document = json.loads(text) if isinstance(text, str) else text
    if not isinstance(document, dict):
        return {}
    return {
        (topic, partition): offset
        for topic, partitions in document.items()
        if isinstance(partitions, dict)
        for partition, offset in partitions.items()
        if isinstance(offset, int)
    }


def _distance(end: Mapping[tuple[str, str], int], latest: Mapping[tuple[str, str], int]) -> int:
    return sum(max(offset - end.get(place, 0), 0) for place, offset in latest.items())
