"""The source's options, each under the name that Spark's Kafka connector gives it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from clarion.model.errors import KafkaError
from clarion.model.ids import TopicPartition
from clarion.model.names import check_topic_name
from clarion.pipeline.connector_options import OptionError, Options, client_settings
from clarion.pipeline.kafka.offsets import READ_COMMITTED, READ_UNCOMMITTED
from clarion.pipeline.kafka.range_reader import FetchSettings
from clarion.pipeline.kafka.settings import ClientSettings
from clarion.pipeline.lake.location import Location, is_store_option, locate
from clarion.pipeline.source.bounds import ENDING_NAMES, STARTING_NAMES, Bound, ending_bound, starting_bound
from clarion.pipeline.source.planning import Tasks

SOURCE_NAMES: Final = (
    "subscribe", "subscribePattern", "assign", *STARTING_NAMES, *ENDING_NAMES, "startingOffsetsByTimestampStrategy",
    "minOffsetsPerTrigger", "maxTriggerDelay", "maxOffsetsPerTrigger", "maxBytesPerTrigger", "minPartitions",
    "maxRecordsPerPartition", "splitPartitions", "includeHeaders", "includeTopicId", "failOnDataLoss", "groupId",
    "longPollMs", "history",
)  # fmt: skip
SOURCE_CLIENT_NAMES: Final = (
    "group.id", "isolation.level", "fetch.max.bytes", "fetch.max.wait.ms", "check.crcs", "metadata.max.age.ms",
)  # fmt: skip

# A micro-batch has a fixed cost of about a tenth of a second, so it may grow; but what one failure repeats, and what
# the first one after a long stop does before it shows any progress, should stay within minutes.
BYTES_PER_TRIGGER_DEFAULT: Final = 256 * 1024 * 1024

# How long a stream waits for news before it lets Spark ask its other sources, one after the other: long enough that an
# idle query costs next to nothing. Whoever knows that there are others (the runner) has it wait for a moment only.
LONG_POLL_MS: Final = 500
SHORT_POLL_MS: Final = 10


@dataclass(frozen=True, slots=True)
class TopicSubscription:
    """Exactly one of the three is set."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: tuple[TopicPartition, ...] = ()

    @property
    def names(self) -> tuple[str, ...] | None:
        """The topics by name; None where only the broker can say which they are."""
        if self.pattern is not None:
            return None
        return self.topics or tuple(sorted({tp.topic for tp in self.assigned}))

    def covers(self, topic: str, partition: int | None = None) -> bool:
        """Internal topics are meant by name only, never by a pattern."""
        if self.assigned and partition is not None:
            return TopicPartition(topic, partition) in self.assigned
        if self.names is not None:
            return topic in self.names
        assert self.pattern is not None
        return re.fullmatch(self.pattern, topic) is not None and not topic.startswith("__")


@dataclass(frozen=True, slots=True)
class TriggerLimits:
    """How much goes into a micro-batch."""

    rows_min: int | None = None
    rows_max: int | None = None
    bytes_max: int | None = BYTES_PER_TRIGGER_DEFAULT
    delay_max_ms: int = 15 * 60_000


@dataclass(frozen=True, slots=True)
class SourceSettings:
    client: ClientSettings
    subscription: TopicSubscription
    starting: Bound | None
    ending: Bound | None
    takes_latest_without_time: bool  # where no message is as late as asked for: begin at the end, instead of failing
    limits: TriggerLimits
    tasks: Tasks
    include_headers: bool
    include_topic_id: bool
    fail_on_data_loss: bool
    group_id: str | None
    fetch: FetchSettings
    metadata_max_age_ms: int
    long_poll_ms: int
    history: Location | None = None  # an archive: the past of the topics, which is read with them


def source_settings(given: Mapping[str, str]) -> SourceSettings:
    store = {name: value for name, value in given.items() if is_store_option(name)}
    options = Options({name: given[name] for name in given if name not in store}, SOURCE_NAMES, SOURCE_CLIENT_NAMES)
    past = options.text("history", None)
    include_headers = options.boolean("includeHeaders", False)
    if "groupId" in options and "group.id" in options:
        raise OptionError("options groupId and kafka.group.id mean the same; give one")
    return SourceSettings(
        client=client_settings(options),
        subscription=_subscription(options),
        starting=starting_bound(options),
        ending=ending_bound(options),
        takes_latest_without_time=options.choice(
            "startingOffsetsByTimestampStrategy", {"error": False, "latest": True}, False
        ),
        limits=_limits(options),
        tasks=Tasks(
            least=options.number("minPartitions", None),
            rows_max=options.number("maxRecordsPerPartition", None),
            may_split=options.boolean("splitPartitions", False),
        ),
        include_headers=include_headers,
        include_topic_id=options.boolean("includeTopicId", False),
        fail_on_data_loss=options.boolean("failOnDataLoss", True),
        group_id=options.text("groupId", None) or options.text("group.id", None),
        fetch=_fetch(options, include_headers),
        metadata_max_age_ms=options.number("metadata.max.age.ms", 2_000),
        long_poll_ms=options.number("longPollMs", LONG_POLL_MS, least=0),
        history=None if past is None else locate(past, store),
    )


def _subscription(options: Options) -> TopicSubscription:
    chosen = [name for name in ("subscribe", "subscribePattern", "assign") if name in options]
    if len(chosen) != 1:
        said = f", not {' and '.join(chosen)}" if chosen else ""
        raise OptionError(f"give one of the options subscribe, subscribePattern and assign{said}")
    return options.read(chosen[0], _READERS[chosen[0]], TopicSubscription())


def _topics(text: str) -> TopicSubscription:
    names = tuple(sorted({name.strip() for name in text.split(",") if name.strip()}))
    if not names:
        raise ValueError("it names no topic")
    for name in names:
        _check_name(name)
    return TopicSubscription(topics=names)


def _pattern(text: str) -> TopicSubscription:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"{text!r} is not a regular expression: {error}") from None
    return TopicSubscription(pattern=text)


def _assigned(text: str) -> TopicSubscription:
    """`{"topic": [0, 1]}`"""
    try:
        document = json.loads(text)
        places = {TopicPartition(topic, int(one)) for topic, partitions in document.items() for one in partitions}
    except (ValueError, TypeError, AttributeError):
        raise ValueError(f'{text!r} is not JSON like {{"topic": [0, 1]}}') from None
    if not places or min(tp.partition for tp in places) < 0:
        raise ValueError("it names no partition" if not places else "a partition is negative")
    for tp in places:
        _check_name(tp.topic)
    return TopicSubscription(assigned=tuple(sorted(places)))


_READERS: Final = {"subscribe": _topics, "subscribePattern": _pattern, "assign": _assigned}


def _check_name(name: str) -> None:
    try:
        check_topic_name(name)
    except KafkaError as error:
        raise ValueError(str(error)) from None


def _limits(options: Options) -> TriggerLimits:
    limits = TriggerLimits(
        rows_min=options.number("minOffsetsPerTrigger", None),
        rows_max=options.number("maxOffsetsPerTrigger", None),
        bytes_max=options.number("maxBytesPerTrigger", BYTES_PER_TRIGGER_DEFAULT),
        delay_max_ms=options.read("maxTriggerDelay", _duration_ms, 15 * 60_000),
    )
    if limits.rows_min and limits.rows_max and limits.rows_min > limits.rows_max:
        raise OptionError("option minOffsetsPerTrigger is greater than maxOffsetsPerTrigger")
    return limits


_UNITS_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION = re.compile(r"(\d+)\s*([a-z]*)")


def _duration_ms(text: str) -> int:
    found = _DURATION.fullmatch(text.strip().lower())
    if found is None or (found[2] or "ms") not in _UNITS_MS:
        raise ValueError(f"{text!r} is not a time like 30s, 15m or 2h")
    return int(found[1]) * _UNITS_MS[found[2] or "ms"]


def _fetch(options: Options, with_headers: bool) -> FetchSettings:
    defaults = FetchSettings()
    isolation = {"read_committed": READ_COMMITTED, "read_uncommitted": READ_UNCOMMITTED}
    return FetchSettings(
        fetch_bytes=options.number("fetch.max.bytes", defaults.fetch_bytes),
        wait_ms=options.number("fetch.max.wait.ms", defaults.wait_ms),
        isolation=options.choice("isolation.level", isolation, READ_COMMITTED),
        checks_crcs=options.boolean("check.crcs", True) if "check.crcs" in options else None,
        with_headers=with_headers,
    )
