"""`topic(name)`: a topic as a pipeline's source or target, raw or as JSON with a declared schema.

Reading   without `json` the columns are the connector's (key, value, topic, partition, offset, timestamp,
          timestampType); `key="user"` and `value="line"` give them a name and make them text. With `json` the declared
          fields are the columns, `key` adds the message's key as text, `metadata=True` adds its origin as `_message`.
          `headers`, `timestamp` and `partition` give what they are called a column, too.
Writing   `key` and `value` name the columns that become the message's key and value. Without `value` the value is all
          columns as one JSON object; but a binary column called `value` is taken as it is: raw bytes in, raw bytes out.
          `headers`, `timestamp` and `partition` name columns as well, and `topic(by="kind")` the one with the topic of
          each row. Columns that say where a message goes (`by`, `partition`) and its headers are no part of the value.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from clarion.model.errors import KafkaError
from clarion.model.names import check_topic_name
from clarion.pipeline.definition import OUTPUT_MODES, DefinitionError, MicroBatch, QuerySettings, RunSettings, texts
from clarion.pipeline.field_list import why_no_fields

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

FORMAT = "clarion"
ON_BAD = ("quarantine", "fail", "drop")
_TOPIC_CHARACTERS = re.compile(r"[a-zA-Z0-9._-]*")
_OURS = {  # the connector options that this module sets itself
    "bootstrap.servers", "kafka.bootstrap.servers", "subscribe", "subscribepattern", "assign", "topic", "groupid",
    "startingoffsets", "endingoffsets", "startingtimestamp", "endingtimestamp", "startingoffsetsbytimestamp",
    "endingoffsetsbytimestamp", "startingoffsetsbytimestampstrategy",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TopicReference:
    """Topics by name, or by a pattern, and how their messages become rows and back."""

    names: tuple[str, ...]
    pattern: str | None = None
    json: str | None = None
    key: str | None = None
    value: str | None = None
    headers: str | None = None
    timestamp: str | None = None
    partition: str | None = None
    by: str | None = None  # the column with each row's topic; then there are no names
    metadata: bool = False
    on_bad: str = "quarantine"
    quarantine: str | None = None
    partitions: int | None = None
    bootstrap: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    json_options: Mapping[str, str] = field(default_factory=dict)

    @property
    def description(self) -> str:
        if self.by:
            return f"topics by {self.by}"
        return f"topics {self.pattern}" if self.pattern else f"topic {','.join(self.names)}"

    @property
    def output_modes(self) -> tuple[str, ...]:
        return OUTPUT_MODES

    @property
    def keeps_order(self) -> bool:
        return True

    @property
    def is_raw(self) -> bool:
        return self.json is None and not any(self.columns.values())

    @property
    def columns(self) -> dict[str, str | None]:
        """What the parts of a message are called in rows, by the connector's names; None: as there."""
        return {
            "key": self.key,
            "value": self.value,
            "headers": self.headers,
            "timestamp": self.timestamp,
            "partition": self.partition,
            "topic": self.by,
        }

    def matches(self, name: str) -> bool:
        return re.fullmatch(self.pattern, name) is not None if self.pattern else name in self.names

    def quarantine_for(self, pipeline_name: str) -> str | None:
        """The topic that bad records go to; None where there are none, or they are not kept."""
        if self.json is None or self.on_bad != "quarantine":
            return None
        return self.quarantine or f"{pipeline_name}.quarantine"

    def connection(self, run: RunSettings) -> dict[str, str]:
        return {**run.client, "bootstrap.servers": self.bootstrap or run.bootstrap}

    def missing(self, run: RunSettings) -> str | None:
        """A topic that nobody has made yet. If all are there, the quarantine is made."""
        from clarion.pipeline.broker_link import BrokerLink

        link = BrokerLink(self.connection(run))
        there = link.topics()
        if absent := [each for each in self.names if each not in there]:
            return f"topic {', '.join(absent)} does not exist at {link.bootstrap}"
        self._check_options(run)
        if (quarantine := self.quarantine_for(run.name)) and quarantine not in there:
            link.make_quarantine(quarantine)
        return None

    def _check_options(self, run: RunSettings) -> None:
        """As the connector will, when Spark is there."""
        from clarion.pipeline.connector_options import OptionError
        from clarion.pipeline.source.options import source_settings

        try:
            source_settings({**self.connection(run), **self._subscription, **self.options})
        except OptionError as error:
            raise DefinitionError(f"{self.description}: {error}") from error

    @property
    def _subscription(self) -> dict[str, str]:
        return {"subscribePattern": self.pattern} if self.pattern else {"subscribe": ",".join(self.names)}

    def load(self, spark: SparkSession, run: RunSettings, *, streaming: bool) -> DataFrame:
        from clarion.pipeline.source.options import SHORT_POLL_MS
        from clarion.pipeline.topic_rows import rows_of

        reader = (spark.readStream if streaming else spark.read).format(FORMAT)
        ours = {"groupId": run.group, "splitPartitions": str(run.may_split).lower(), **run.starting}
        if self.headers or (self.is_raw and not run.may_split):  # on its way to a topic a message keeps its headers
            ours["includeHeaders"] = "true"
        if run.has_several_sources:
            ours["longPollMs"] = str(SHORT_POLL_MS)
        options = {**self.connection(run), **self._subscription, **ours, **self.options}
        ending = {} if streaming else run.ending
        return rows_of(reader.options(**options, **ending).load(), self, run)

    def prepare(self, spark: SparkSession, run: RunSettings) -> None:
        from clarion.pipeline.broker_link import BrokerLink

        for name in self.names:
            BrokerLink(self.connection(run)).make_topic(name, self.partitions)

    def start(self, df: DataFrame, run: RunSettings, query: QuerySettings) -> StreamingQuery:
        from clarion.pipeline.topic_rows import messages_of

        return query.start(messages_of(df, self, run).writeStream.format(FORMAT).options(**self._sink_options(run)))

    def write(self, df: DataFrame, run: RunSettings, batch: MicroBatch | None = None) -> None:
        """At least once: a batch that is played again is written again."""
        from clarion.pipeline.topic_rows import messages_of

        messages_of(df, self, run).write.format(FORMAT).options(**self._sink_options(run)).mode("append").save()

    def _sink_options(self, run: RunSettings) -> dict[str, str]:
        return {**self.connection(run), **({} if self.by else {"topic": self.names[0]}), **self.options}


def topic(
    name: str | Sequence[str] = (),
    *,
    by: str | None = None,
    json: str | None = None,
    key: str | None = None,
    value: str | None = None,
    headers: str | None = None,
    timestamp: str | None = None,
    partition: str | None = None,
    metadata: bool = False,
    on_bad: str = "quarantine",
    quarantine: str | None = None,
    partitions: int | None = None,
    bootstrap: str | None = None,
    options: Mapping[str, str] | None = None,
    json_options: Mapping[str, str] | None = None,
) -> TopicReference:
    """A topic by name, several by a list of names, or all that match a regular expression (`logs-.*`).

    by          instead of a name, for a target: the column that says which topic a row goes to
    json        the fields of the JSON value as Spark's DDL, e.g. "ts timestamp not null, level string"
    key, value  the column that is the message's key, or value
    headers     the column with its headers: array<struct<key, value>>, or for a target a map
    timestamp   the column with its timestamp
    partition   the column with its partition; null for a target: as the key decides
    metadata    add the column `_message` (key, topic, partition, offset, timestamp) to the fields of `json`
    on_bad      a value that does not fit `json`: `quarantine` (to a topic, with the reason), `fail` or `drop`
    quarantine  the name of that topic, by default `<pipeline>.quarantine`
    partitions  how many a target has if the pipeline makes it; by default as the broker decides
    bootstrap   a broker other than the run's
    options     more options for the connector, e.g. {"maxOffsetsPerTrigger": "100000"}
    """
    names, pattern = _names_and_pattern(name)
    made = TopicReference(
        names, pattern, json, key, value, headers, timestamp, partition, by, metadata, on_bad, quarantine, partitions,
        bootstrap,
        texts(options), texts(json_options),
    )  # fmt: skip
    _check(made)
    return made


def refusal(name: str, reads: Sequence[object], writes: Sequence[object]) -> str | None:
    """Why a pipeline cannot have these topics; None if it can."""
    sources = [each for each in reads if isinstance(each, TopicReference)]
    targets = [each for each in writes if isinstance(each, TopicReference)]
    for source in sources:
        if source.by:
            return f"it reads {source.description}: only a target can be chosen by a column"
    for target in targets:
        if len(target.names) != 1 and not target.by:
            return f"it writes to {target.description}: a target is one topic, by name, or by a column (by=…)"
    written = {*(name for each in targets for name in each.names), *(each.quarantine_for(name) for each in sources)}
    for topic_name in sorted(filter(None, written)):
        if any(each.matches(topic_name) for each in sources):
            return f"it reads topic {topic_name} and writes to it; that would never end"
    return None


def _names_and_pattern(given: str | Sequence[str]) -> tuple[tuple[str, ...], str | None]:
    if isinstance(given, str) and not _TOPIC_CHARACTERS.fullmatch(given):
        return (), given
    return ((given,) if isinstance(given, str) else tuple(given)), None


def _check(made: TopicReference) -> None:
    where = f"topic({made.pattern or ','.join(made.names) or f'by={made.by}'!r})"
    _check_names(made, where)
    if made.json is not None and made.value is not None:
        raise DefinitionError(f"{where}: json= and value= exclude each other: a value is parsed or it is one column")
    if made.json is not None and (reason := why_no_fields(made.json)):
        raise DefinitionError(f"{where}: json={made.json!r} is not a valid field list: {reason}")
    if made.on_bad not in ON_BAD:
        raise DefinitionError(f"{where}: on_bad={made.on_bad!r}; choose from {', '.join(ON_BAD)}")
    if made.quarantine is not None and made.on_bad != "quarantine":
        raise DefinitionError(f"{where}: quarantine= names a topic, but on_bad={made.on_bad!r} keeps no bad records")
    if made.partitions is not None and made.partitions < 1:
        raise DefinitionError(f"{where}: partitions={made.partitions}; at least 1")
    for name in made.options:
        if name.lower() in _OURS:
            raise DefinitionError(f"{where}: option {name} is set by the run (topic name, --bootstrap, --from, --to)")


def _check_names(made: TopicReference, where: str) -> None:
    is_named = bool(made.names) or made.pattern is not None
    if not is_named and not made.by:
        raise DefinitionError("topic([]): name at least one topic")
    if made.by and (is_named or made.partitions is not None):
        raise DefinitionError(
            f"topic(by={made.by!r}): the column names the topics, and none is made: leave out the rest"
        )
    for name in (*made.names, *filter(None, [made.quarantine])):
        try:
            check_topic_name(name)
        except KafkaError as error:
            raise DefinitionError(f"{where}: {error}") from error
    if made.pattern is not None:
        try:
            re.compile(made.pattern)
        except re.error as error:
            raise DefinitionError(f"{where}: neither a topic's name nor a regular expression: {error}") from error
