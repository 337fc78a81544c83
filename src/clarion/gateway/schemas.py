"""The API's objects as OpenAPI describes them. What is hot is read and written by hand, and only described here."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from clarion.gateway.message_forms import HEADERS_MAX, IDEMPOTENCY_KEY_CHARS_MAX, PARTITION_MAX, TIMESTAMP_MAX

Offset = Annotated[int, Field(ge=0)]
PartitionIndex = Annotated[int, Field(ge=0, le=PARTITION_MAX)]


class Described(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Problem(BaseModel):
    """RFC 9457. `code` is Kafka's name for the error where it has one."""

    model_config = ConfigDict(extra="allow")

    type: str = Field(examples=["urn:clarion:problem:unknown-topic-or-partition"])
    title: str
    status: int
    detail: str = Field(description="What is wrong, and what to do.")
    code: str | None = Field(default=None, examples=["UNKNOWN_TOPIC_OR_PARTITION"])


class NewTopic(Described):
    name: str = Field(min_length=1, max_length=249, examples=["orders"])
    partitions: int | None = Field(default=None, ge=1, le=100_000, description="Where not given: num.partitions.")
    replication_factor: int | None = Field(default=None, ge=1, le=1_000)
    settings: dict[str, str | int | float | bool] = Field(
        default_factory=dict,
        description="By Kafka's names; times and sizes as people write them, too: 7d, 64MiB.",
        examples=[{"retention.ms": "7d"}],
    )


class TopicName(Described):
    name: str
    id: str
    partitions: int
    is_internal: bool = False


class TopicList(Described):
    topics: list[TopicName]


class TopicPartitionState(Described):
    partition: int
    leader: int | None
    replicas: list[int]
    in_sync: list[int]
    start_offset: int | None = Field(description="The first that can be read; null while its leader does not answer.")
    high_watermark: int | None = Field(description="The first that is not committed yet.")


class TopicDescription(Described):
    name: str
    id: str
    is_internal: bool
    settings: dict[str, str | None] = Field(description="What holds for it, its own and inherited.")
    overrides: dict[str, str] = Field(description="Those that are its own.")
    partitions: list[TopicPartitionState]


class TopicChange(Described):
    settings: dict[str, str | int | float | bool | None] = Field(
        default_factory=dict,
        description="As of a new topic; null takes back what was set: the broker's default holds again.",
    )
    partitions: int | None = Field(default=None, ge=1, le=100_000, description="Only more than there are.")


class HeaderIn(Described):
    name: str
    value: Any = None
    value_base64: str | None = None


class MessageIn(Described):
    """A string is its UTF-8 bytes, any other value its JSON text; null is no key, or a tombstone."""

    key: Any = Field(default=None, examples=["42"])
    key_base64: str | None = None
    value: Any = Field(default=None, examples=[{"total": 12.5}])
    value_base64: str | None = None
    headers: dict[str, Any] | list[HeaderIn] | None = Field(default=None, max_length=HEADERS_MAX)
    partition: PartitionIndex | None = None
    timestamp: int | None = Field(default=None, ge=0, le=TIMESTAMP_MAX, description="Milliseconds since 1970.")
    idempotency_key: str | None = Field(default=None, min_length=1, max_length=IDEMPOTENCY_KEY_CHARS_MAX)


class WrittenMessage(Described):
    topic: str
    topic_id: str
    partition: int
    offset: int


class BatchResult(BaseModel):
    """Of one message: where it is, or a problem."""

    model_config = ConfigDict(extra="allow")

    partition: int | None = None
    offset: int | None = None
    status: int | None = None
    detail: str | None = None


class WrittenBatch(Described):
    topic: str
    topic_id: str
    results: list[BatchResult]


class HeaderOut(Described):
    name: str
    value: str | None = None
    value_base64: str | None = None


class MessageOut(Described):
    topic: str
    partition: int
    offset: int
    timestamp: int
    key: str | None = None
    key_base64: str | None = None
    value: Any = None
    value_base64: str | None = None
    headers: list[HeaderOut] = Field(default_factory=list)


class MessageList(Described):
    messages: list[MessageOut]
    next: str = Field(description="Where the next read begins: give it as `after`.", examples=["0:12,1:7"])


Text = str | None
Duration = str | int | None  # "30s", or whole milliseconds


class PushEndpointIn(Described):
    url: str
    secret: Text = None
    batch_max: int | None = None
    ordered: bool | None = None
    timeout: Duration = None
    headers: dict[str, str] | None = None
    allow_private: bool | None = None


class SubscriptionChange(Described):
    """What is absent stays as it is; durations are texts as `30s`, or whole milliseconds."""

    topics: list[str] | None = Field(default=None, max_length=1_000)
    pattern: Text = None
    push: PushEndpointIn | None = None
    filter: Text = None
    retention: Duration = Field(default=None, description="`consumed`, or how long; null: the topic's own.")
    ack_timeout: Duration = None
    max_deliveries: int | None = None
    backoff_min: Duration = None
    backoff_max: Duration = None
    dead_letter_topic: Text = None
    per_key_order: bool | None = None
    window: int | None = None
    message_ttl: Duration = None
    start: Text = Field(default=None, description="earliest, latest, or how long ago.", examples=["earliest"])
    paused: bool | None = None
    guarantee: Text = None


class NewSubscription(SubscriptionChange):
    """What is absent has its default."""

    name: str = Field(examples=["billing"])
    mode: Text = Field(default=None, description="queue or stream.", examples=["queue"])


class SubscriptionOut(BaseModel):
    """As it was said, with its defaults, when it was made, and its revision."""

    model_config = ConfigDict(extra="allow")

    name: str
    mode: str
    topics: list[str]
    paused: bool


class SubscriptionSummary(BaseModel):
    """A subscription, or a group of Kafka's clients."""

    model_config = ConfigDict(extra="allow")

    name: str
    is_subscription: bool
    mode: str
    state: str


class SubscriptionList(Described):
    subscriptions: list[SubscriptionSummary]


class GroupList(Described):
    groups: list[SubscriptionSummary]


class SubscriptionPlace(BaseModel):
    model_config = ConfigDict(extra="allow")

    topic: str
    partition: int
    position: int | None
    end_offset: int | None
    lag: int | None
    in_flight: int | None


class SubscriptionDescription(BaseModel):
    """Its rules, its members, and partition by partition how far it is, and what is in whose hands."""

    model_config = ConfigDict(extra="allow")

    name: str
    mode: str
    state: str
    lag: int
    in_flight: int
    members: list[dict[str, str]]
    partitions: list[SubscriptionPlace]


class PullRequest(Described):
    consumer: str = Field(default="http", min_length=1, max_length=255, description="Who takes them: any name.")
    max_messages: int = Field(default=10, ge=1, le=1_000)
    wait_ms: int = Field(default=0, ge=0, le=30_000, description="How long to wait where there is nothing yet.")
    encoding: Literal["text", "json", "base64"] = "text"


class PulledMessage(MessageOut):
    topic_id: str
    deliveries: int = Field(description="How often it was delivered, this time included.")
    receipt: str = Field(description="What it is settled by, until its lock ends.")


class PulledMessages(Described):
    messages: list[PulledMessage]


class SettlementIn(Described):
    receipt: str = Field(max_length=1_000)
    action: Literal["ack", "release", "reject", "extend"] = "ack"
    delay: Duration = Field(default=None, description="Of a release: after how long it may come again.")
    reason: str = Field(default="", max_length=1_000, description="Of a rejection: it goes into the dead letter.")
    extend: Duration = Field(default=None, description="Of an extension: by how much.")


class SettleRequest(Described):
    settlements: list[SettlementIn] = Field(min_length=1, max_length=10_000)


class SettlementResult(Described):
    receipt: str
    status: int = Field(description="200, or what a problem would have.")
    code: str | None = None
    detail: str | None = None


class SettlementResults(Described):
    results: list[SettlementResult]


class PeekedMessage(MessageOut):
    deliveries: int
    holder: str = Field(description="Who has it now; empty: nobody.")


class PeekedMessages(Described):
    messages: list[PeekedMessage]


class SeekRequest(Described):
    to: str | None = Field(default=None, description="earliest, latest, a time, or how long ago.", examples=["1h"])
    offsets: dict[str, dict[str, int]] | None = Field(default=None, examples=[{"orders": {"0": 42}}])


class SoughtOffset(Described):
    topic: str
    partition: int
    offset: int


class SeekResult(Described):
    positions: list[SoughtOffset]


class PurgeResult(Described):
    passed_over: int = Field(description="Messages, about.")


class RedriveRequest(Described):
    max_messages: int | None = Field(default=None, ge=1, le=1_000_000)


class RedriveResult(Described):
    sent: int
    left: int
    stopped_at: str | None


class BrokerDescription(Described):
    id: int
    host: str
    port: int
    rack: str | None
    is_controller: bool
    http: str | None = Field(description="Where its HTTP is; null where it has none, or does not answer.")


class Health(Described):
    is_ready: bool
    partitions_offline: int = Field(description="Of this broker, after a disk error.")
    partitions_without_leader: int
    partitions_under_replicated: int
    reason: str | None


class ClusterDescription(Described):
    cluster_id: str
    broker_id: int = Field(description="The one that answers.")
    controller_id: int
    version: str
    brokers: list[BrokerDescription]
    topics: int
    partitions: int
    health: Health


Encoding = Literal["text", "json", "base64"]

EVENTS: Final[dict[int | str, dict[str, Any]]] = {
    "default": {
        "description": "A problem: what is wrong, and what to do.",
        "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
    },
    200: {
        "description": "One event for each message, until the client leaves; comments in between say that all is well.",
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
    },
}

PROBLEM: Final[dict[int | str, dict[str, Any]]] = {
    "default": {
        "description": "A problem: what is wrong, and what to do.",
        "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
    }
}
