"""`rollup`: counts, sums and quantiles of a topic's JSON fields per window of time, to a topic and a table.

    from clarion.pipeline import rollup

    per_minute = rollup("logs", every="1 minute", by="service", sum="bytes", quantiles={"latency_ms": [0.5, 0.99]},
                        to="logs_per_minute", table_path="lake/logs_per_minute")

A window is written once, when the watermark says that no more of it is to be expected: `delay` after its end in the
messages' own time. So the last windows of a topic that has gone quiet wait for a later message; a batch (`--to`) writes
them all.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from clarion.pipeline.definition import DefinitionError, Pipeline, PipelineTarget, check
from clarion.pipeline.intervals import why_no_interval
from clarion.pipeline.table_reference import table
from clarion.pipeline.topic_reference import topic

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_FIELD: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ACCURACY: Final = 1000  # percentile_approx: ranks are off by at most a thousandth
_COLUMNS: Final = ("window_start", "window_end", "count")


@dataclass(frozen=True, slots=True)
class Measures:
    """What is asked of every window; one row per window and value of `by`."""

    every: str
    slide: str | None = None
    by: tuple[str, ...] = ()
    sums: tuple[str, ...] = ()
    quantiles: Mapping[str, Sequence[float]] = field(default_factory=dict)
    time: str | None = None  # a field of the JSON; None: the messages' own timestamp
    delay: str = "1 minute"

    @property
    def ddl(self) -> str:
        """Only the fields that are looked at; the others are not even parsed."""
        fields = {} if self.time is None else {self.time: "timestamp not null"}
        fields |= dict.fromkeys(self.by, "string")
        fields |= dict.fromkeys((*self.sums, *self.quantiles), "double")
        return ", ".join(f"`{name}` {kind}" for name, kind in fields.items()) or "`_` string"

    def __call__(self, messages: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F

        when = F.col(f"`{self.time}`") if self.time else F.col("_message.timestamp")
        timed = messages.withColumn("__time", when).withWatermark("__time", self.delay)
        window = F.window("__time", self.every, self.slide)
        grouped = timed.groupBy(window, *[F.col(f"`{each}`") for each in self.by])
        window_ends = [F.col("window.start").alias("window_start"), F.col("window.end").alias("window_end")]
        names = [f"`{name}`" for name in (*self.by, "count", *self.names)]
        return grouped.agg(*self._aggregates()).select(*window_ends, *names)

    @property
    def names(self) -> list[str]:
        ranks = [f"{each}_p{_percent(rank)}" for each, some in self.quantiles.items() for rank in some]
        return [*(f"{each}_sum" for each in self.sums), *ranks]

    def _aggregates(self) -> list[Column]:
        from pyspark.sql import functions as F

        found = [F.count(F.lit(1)).alias("count")]
        found += [F.sum(f"`{each}`").alias(f"{each}_sum") for each in self.sums]
        for each, ranks in self.quantiles.items():
            found += [
                F.percentile_approx(f"`{each}`", rank, _ACCURACY).alias(f"{each}_p{_percent(rank)}") for rank in ranks
            ]
        return found


def rollup(
    topics: str | Sequence[str],
    *,
    every: str,
    slide: str | None = None,
    by: str | Sequence[str] = (),
    sum: str | Sequence[str] = (),
    quantiles: Mapping[str, Sequence[float]] | None = None,
    time: str | None = None,
    delay: str = "1 minute",
    to: str | None = None,
    table_path: str | None = None,
    key: str | None = None,
    name: str | None = None,
    trigger: str | None = None,
    options: Mapping[str, str] | None = None,
) -> Pipeline:
    """Windowed measures of JSON messages.

    every, slide  the window's length, and how often one begins (by default one after the other)
    by            fields whose values are counted apart
    sum           fields that are added up
    quantiles     field → ranks between 0 and 1, e.g. {"latency_ms": [0.5, 0.99]}
    time          the field with the event's time; by default the message's timestamp
    delay         how late a message may be and still be counted
    to            the topic that gets a JSON message per window; `key` is its key, by default the first of `by`
    table_path    the table that gets a row per window
    """
    measures = Measures(every, slide, _names(by), _names(sum), dict(quantiles or {}), time, delay)
    _check_fields(measures)
    source = topic(topics, json=measures.ddl, metadata=True, options=options)
    targets: list[PipelineTarget] = []
    if to is not None:
        targets.append(topic(to, key=key or (measures.by[0] if measures.by else None)))
    if table_path is not None:
        targets.append(table(table_path))
    if not targets:
        raise DefinitionError("a rollup needs a topic (to=, --to-topic), a table (table_path=, --table) or both")
    made = Pipeline(
        name=name or f"rollup-{source.names[0] if source.names else 'topics'}",
        function=lambda messages: measures(messages),
        reads=(source,),
        writes=tuple(targets),
        trigger=trigger,
        description=f"{', '.join(('count', *measures.names))} of {source.description} every {every}",
    )
    check(made)
    return made


def _check_fields(measures: Measures) -> None:
    for each in (*measures.by, *measures.sums, *measures.quantiles, *filter(None, [measures.time])):
        if not _FIELD.fullmatch(each):
            raise DefinitionError(f"rollup: {each!r} is not the name of a JSON field")
    for parameter, length in (("every", measures.every), ("slide", measures.slide), ("delay", measures.delay)):
        if length is not None and (reason := why_no_interval(length)):
            raise DefinitionError(f"rollup: {parameter}: {reason}")
    _check_names(measures)
    for name, ranks in measures.quantiles.items():
        if not ranks or not all(0 <= rank <= 1 for rank in ranks):
            raise DefinitionError(f"rollup: quantiles of {name} are numbers between 0 and 1, not {list(ranks)}")


def _check_names(measures: Measures) -> None:
    """Spark knows no difference between a name in large letters and in small ones."""
    by = [each.lower() for each in measures.by]
    columns = [each.lower() for each in (*_COLUMNS, *measures.names)]
    if clash := sorted({*by} & {*columns, "window"}):
        raise DefinitionError(f"rollup: by={clash[0]!r} is the name of a column of the result")
    if twice := next((each for each in (*by, *columns) if [*by, *columns].count(each) > 1), None):
        raise DefinitionError(f"rollup: {twice} would be a column of the result twice")
    measured = {*measures.sums, *measures.quantiles}
    if measures.time in {*measures.by, *measured}:
        raise DefinitionError(
            f"rollup: time={measures.time!r} is the event's time, and cannot be counted apart or added up"
        )
    fields = sorted({*measures.by, *measured, *filter(None, [measures.time])}, key=lambda each: (each.lower(), each))
    for one, other in pairwise(fields):
        if one.lower() == other.lower():
            raise DefinitionError(f"rollup: the fields {one} and {other} differ by case alone")


def _names(given: str | Sequence[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


def _percent(rank: float) -> str:
    """0.5 → 50, 0.999 → 99_9"""
    return f"{rank * 100:g}".replace(".", "_")
