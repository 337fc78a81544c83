"""A subscription: a named reader of one or more topics, with its mode, retention, filter and delivery rules.

Its name is its group id on Kafka's wire. Outside the house it is a plain dict (`to_json`) with the names and durations
that people write: `{"name": "billing", "topics": ["orders"], "mode": "queue", "ack_timeout": "30s"}`; what comes from
there is checked at the door (`from_json`), and an error says what to write instead. What it costs to keep one:
`retention_ms` None takes the topic's own retention, `CONSUMED` keeps a message only until it is acknowledged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final

from clarion.model.beginnings import Beginnings
from clarion.model.durations import is_duration, parse_duration_ms, write_duration
from clarion.model.group_settings import reset_duration_ms
from clarion.model.json_fields import JsonFields, check_bounds, check_choice, refused
from clarion.model.names import TOPIC_NAME_LENGTH_MAX, check_topic_name, is_internal, is_topic_name
from clarion.model.push_endpoint import PushEndpoint as PushEndpoint

STREAM: Final = "stream"
QUEUE: Final = "queue"
AT_LEAST_ONCE: Final = "at-least-once"
AT_MOST_ONCE: Final = "at-most-once"
CONSUMED: Final = -1  # as `retention_ms`: a message is needed only until it is acknowledged
DEAD_LETTERS: Final = ".dead-letters"  # follows the subscription's name in its dead letter topic's, unless one is named
NAME_LENGTH_MAX: Final = TOPIC_NAME_LENGTH_MAX - len(DEAD_LETTERS)

TOPICS_MAX: Final = 1_000  # named one by one; more are a pattern
PATTERN_LENGTH_MAX: Final = 4_096  # as of a KIP-848 group's
FILTER_LENGTH_MAX: Final = 4_096  # an expression that one can still read
MILLISECONDS_MAX: Final = 100 * 365 * 86_400_000  # a century: more is a typing mistake
ACK_TIMEOUT_MS: Final = (1_000, 12 * 3_600_000)  # shorter is lost in a network's delays; 12 h is what others allow
DELIVERIES: Final = (1, 100)
BACKOFF_MS: Final = (0, 24 * 3_600_000)
WINDOW: Final = (1, 10_000)  # Kafka's most for share.partition.max.record.locks


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    name: str
    topics: tuple[str, ...] = ()
    pattern: str | None = None  # in RE2's syntax, of whole topic names
    mode: str = QUEUE
    push: PushEndpoint | None = None  # None: its consumers pull
    filter: str | None = None  # in CEL
    retention_ms: int | None = None
    ack_timeout_ms: int = 30_000
    max_deliveries: int = 5
    backoff_min_ms: int = 0
    backoff_max_ms: int = 600_000
    dead_letter_topic: str | None = None  # None: `dead_letters` says which
    per_key_order: bool = False
    window: int = 1_000  # records in flight, per partition
    message_ttl_ms: int | None = None
    start: str = "earliest"  # "latest", or "by_duration:PT1H", as Kafka's share.auto.offset.reset
    paused: bool = False
    created_ms: int = 0
    revision: int = 0  # of the catalog, when it was last changed
    guarantee: str = AT_LEAST_ONCE
    begins: Beginnings | None = field(default=None, hash=False)  # None: by `start`, when its first reader comes

    @property
    def is_queue(self) -> bool:
        return self.mode == QUEUE

    @property
    def keeps_key_order(self) -> bool:
        """Of messages with one key, one is delivered when the one before it is done."""
        return self.per_key_order or (self.push is not None and self.push.ordered)

    @property
    def dead_letters(self) -> str:
        """The topic of the messages that were given up."""
        return self.dead_letter_topic or self.name + DEAD_LETTERS

    def rules(self) -> dict[str, Any]:
        """What somebody has decided, as opposed to what has happened to it. A secret is compared elsewhere."""
        told = self.to_json(with_secret=True)
        if told["push"] is not None:
            del told["push"]["secret"]
        return {name: value for name, value in told.items() if name not in ("created", "revision", "paused")}

    def is_same(self, present: Subscription) -> bool:
        """Whether the same is asked for as there is."""
        secrets = [one.push.secret for one in (self, present) if one.push is not None]
        return self.rules() == present.rules() and (len(secrets) < 2 or secrets[0] in ("", secrets[1]))

    def check(self) -> None:
        """KafkaError, which says what to do, where it cannot be one. A pattern and a filter are compiled elsewhere."""
        check_subscription_name(self.name)
        self._check_topics()
        check_choice("mode", self.mode, (STREAM, QUEUE))
        check_choice("guarantee", self.guarantee, (AT_LEAST_ONCE, AT_MOST_ONCE))
        self._check_times()
        check_bounds("max_deliveries", self.max_deliveries, DELIVERIES)
        check_bounds("window", self.window, WINDOW)
        _check_start(self.start)
        if self.filter is not None and not 0 < len(self.filter) <= FILTER_LENGTH_MAX:
            raise refused(f"filter has 1 to {FILTER_LENGTH_MAX} characters; leave it out to get every message")
        self._check_dead_letters()
        if self.push is not None:
            self.push.check()
        self._check_stream()

    def _check_topics(self) -> None:
        if bool(self.topics) == (self.pattern is not None):
            raise refused("a subscription reads either topics, named one by one, or all that a pattern matches")
        if len(self.topics) > TOPICS_MAX:
            raise refused(f"at most {TOPICS_MAX} topics can be named, these are {len(self.topics)}; write a pattern")
        if len(set(self.topics)) < len(self.topics):
            raise refused("a topic is named twice in topics")
        for topic in self.topics:
            _check_readable_topic(topic)
        if self.pattern is not None and not 0 < len(self.pattern) <= PATTERN_LENGTH_MAX:
            raise refused(f"pattern has 1 to {PATTERN_LENGTH_MAX} characters")

    def _check_times(self) -> None:
        check_bounds("ack_timeout", self.ack_timeout_ms, ACK_TIMEOUT_MS, in_ms=True)
        check_bounds("backoff_min", self.backoff_min_ms, BACKOFF_MS, in_ms=True)
        check_bounds("backoff_max", self.backoff_max_ms, BACKOFF_MS, in_ms=True)
        if self.backoff_min_ms > self.backoff_max_ms:
            raise refused("backoff_min is longer than backoff_max")
        if self.retention_ms not in (None, CONSUMED):
            check_bounds("retention", self.retention_ms, (1_000, MILLISECONDS_MAX), in_ms=True)
        if self.message_ttl_ms is not None:
            check_bounds("message_ttl", self.message_ttl_ms, (1, MILLISECONDS_MAX), in_ms=True)

    def _check_dead_letters(self) -> None:
        if self.dead_letter_topic is not None:
            _check_readable_topic(self.dead_letter_topic)
        if self.dead_letters in self.topics:
            raise refused(f"its own dead letters, {self.dead_letters}, would come back to it; name another topic")

    def _check_stream(self) -> None:
        """A stream's reader counts its own position: what is settled one by one is a queue's."""
        if self.mode == STREAM:
            own = (self.per_key_order, "per_key_order"), (self.message_ttl_ms, "message_ttl"), (self.push, "push")
            for is_set, what in own:
                if is_set:
                    raise refused(f'{what} is for queues; write mode "{QUEUE}", or leave it out')

    def check_somebody_can_read(self) -> None:
        """Of one that is made or changed now. It is no part of `check`: a catalog may have such a stream already."""
        if self.mode == STREAM and self.filter is not None:
            raise refused(
                f'a stream is read over Kafka\'s protocol, which filters nothing; write mode "{QUEUE}", or leave the '
                "filter out"
            )

    def group_settings(self) -> dict[str, str]:
        """What Kafka's share consumers see of its rules: the GROUP settings, within Kafka's bounds."""
        if self.mode != QUEUE:
            return {}
        wanted = {
            "share.record.lock.duration.ms": self.ack_timeout_ms,
            "share.delivery.count.limit": self.max_deliveries,
            "share.partition.max.record.locks": self.window,
        }
        return {name: str(_within_kafkas_bounds(name, value)) for name, value in wanted.items()} | {
            "share.auto.offset.reset": self.start
        }

    # As a plain dict

    def to_json(self, *, with_secret: bool = False) -> dict[str, Any]:
        """As people see it: where it begins is the brokers' own."""
        return {
            "name": self.name,
            "topics": list(self.topics),
            "pattern": self.pattern,
            "mode": self.mode,
            "push": None if self.push is None else self.push.to_json(with_secret=with_secret),
            "filter": self.filter,
            "retention": _write_retention(self.retention_ms),
            "ack_timeout": write_duration(self.ack_timeout_ms),
            "max_deliveries": self.max_deliveries,
            "backoff_min": write_duration(self.backoff_min_ms),
            "backoff_max": write_duration(self.backoff_max_ms),
            "dead_letter_topic": self.dead_letter_topic,
            "per_key_order": self.per_key_order,
            "window": self.window,
            "message_ttl": None if self.message_ttl_ms is None else write_duration(self.message_ttl_ms),
            "start": self.start,
            "paused": self.paused,
            "created": _write_moment(self.created_ms),
            "revision": self.revision,
            "guarantee": self.guarantee,
        }

    @classmethod
    def from_json(cls, data: object) -> Subscription:
        """Checked. What is absent or null has its default; durations are texts, or whole milliseconds."""
        found = JsonFields(data, "subscription")
        subscription = cls(
            name=found.text("name") or "",
            topics=found.texts("topics"),
            pattern=found.text("pattern"),
            mode=found.text("mode") or QUEUE,
            push=_read_endpoint(found),
            filter=found.text("filter"),
            retention_ms=_read_retention(found),
            ack_timeout_ms=found.duration("ack_timeout", 30_000),
            max_deliveries=found.number("max_deliveries", 5),
            backoff_min_ms=found.duration("backoff_min", 0),
            backoff_max_ms=found.duration("backoff_max", 600_000),
            dead_letter_topic=found.text("dead_letter_topic"),
            per_key_order=found.truth("per_key_order", False),
            window=found.number("window", 1_000),
            message_ttl_ms=found.duration("message_ttl", None),
            start=_read_start(found.text("start") or "earliest"),
            paused=found.truth("paused", False),
            created_ms=found.moment("created"),
            revision=found.number("revision", 0),
            guarantee=found.text("guarantee") or AT_LEAST_ONCE,
        )
        found.check_all_known()
        subscription.check()
        return subscription

    def changed(self, changes: Mapping[str, Any]) -> Subscription:
        """With these fields of its JSON in place of its own; an endpoint whose secrets are not said keeps its own."""
        for name in ("name", "created", "revision"):
            if name in changes and changes[name] != self.to_json()[name]:
                raise refused(f"{name} cannot be changed; create another subscription")
        after = replace(Subscription.from_json({**self.to_json(with_secret=True), **changes}), begins=self.begins)
        if after.push is not None and self.push is not None:
            after = replace(after, push=after.push.with_secrets_of(self.push))
        return after


def check_subscription_name(name: str) -> None:
    """It is a group id, part of a topic's name and of a path: Kafka's rules for topics, and room for what follows."""
    if not is_topic_name(name) or len(name) > NAME_LENGTH_MAX:
        raise refused(
            f"{name[:NAME_LENGTH_MAX]!r} cannot be a subscription's name: "
            f"it has 1 to {NAME_LENGTH_MAX} letters, digits, '.', '_' and '-'"
        )


def _read_retention(found: JsonFields) -> int | None:
    value = found.get("retention")
    if value in (None, "topic"):
        return None
    return CONSUMED if value == "consumed" else found.duration("retention", None)


def _read_endpoint(found: JsonFields) -> PushEndpoint | None:
    value = found.get("push")
    return None if value is None else PushEndpoint.from_json(value)


def _read_start(text: str) -> str:
    """`1h`, as people say it, is `by_duration:PT3600S`."""
    if not is_duration(text):
        return text
    seconds, thousandths = divmod(parse_duration_ms(text), 1_000)
    return f"by_duration:PT{seconds}.{thousandths:03}S" if thousandths else f"by_duration:PT{seconds}S"


def _write_retention(retention_ms: int | None) -> str | None:
    if retention_ms is None:
        return None
    return "consumed" if retention_ms == CONSUMED else write_duration(retention_ms)


def _write_moment(milliseconds: int) -> str | None:
    if not milliseconds:
        return None
    moment = datetime.fromtimestamp(milliseconds / 1_000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _check_readable_topic(topic: str) -> None:
    check_topic_name(topic)
    if is_internal(topic):
        raise refused(f"{topic} is the broker's own; a subscription cannot read or write it")


def _check_start(start: str) -> None:
    if start in ("earliest", "latest"):
        return
    try:
        reset_duration_ms(start)
    except ValueError:
        raise refused("start is earliest, latest, or how long ago: 1h, or by_duration:PT1H") from None


def _within_kafkas_bounds(name: str, value: int) -> int:
    """What Kafka's tools would accept; the subscription itself may say more."""
    least, most = _KAFKAS_BOUNDS[name]
    return min(max(value, least), most)


_KAFKAS_BOUNDS: Final = {
    "share.record.lock.duration.ms": (15_000, 60_000),
    "share.delivery.count.limit": (2, 10),
    "share.partition.max.record.locks": (100, 10_000),
}

FIELD_NAMES: Final = frozenset(Subscription(name="any").to_json())
"""What a subscription's JSON may have."""
