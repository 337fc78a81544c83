"""Every setting of `clarion serve`, declared once: its name, what it may be, its default, its words, its flag.

The TOML name is the name; the environment's is `CLARION_` and the name in capitals. Topic defaults are not here: they
are the topic's own settings (`clarion.model.topic_settings`) under `[topic_defaults]`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from clarion.broker.config import BrokerConfig, Limits
from clarion.cli.setting_kinds import ADDRESS, ADDRESSES, PATH, SWITCH, Kind, one_of, seconds, whole_number

_BROKER: Final = BrokerConfig(data_dir="")
_LIMITS: Final = Limits()
_MILLISECONDS: Final = whole_number(0)
_COUNT: Final = whole_number(1, 2**31 - 1)


@dataclass(frozen=True, slots=True)
class Setting:
    name: str
    kind: Kind
    default: Any
    doc: str
    flag: str | None = None

    @property
    def env(self) -> str:
        return "CLARION_" + self.name.upper().replace(".", "_")

    @property
    def parameter(self) -> str:
        """The name under which the command's function receives the flag."""
        return self.name.replace(".", "_")


def _broker(name: str, kind: Kind, doc: str, flag: str | None = None) -> Setting:
    """A field of BrokerConfig, with the default it has there."""
    return Setting(name, kind, getattr(_BROKER, name), doc, flag)


def _limit(name: str, kind: Kind, doc: str) -> Setting:
    return Setting(f"limits.{name}", kind, getattr(_LIMITS, name), doc)


SETTINGS: Final = (
    Setting(
        "data_dir",
        PATH,
        "clarion-data",
        "Where the messages are kept. Made if missing; open to its owner alone.",
        "--data-dir",
    ),
    Setting(
        "listen",
        ADDRESSES,
        "127.0.0.1:9092",
        "Where clients connect. Beyond loopback only with `insecure`.",
        "--listen",
    ),
    Setting(
        "advertise",
        ADDRESSES,
        None,
        "What clients are told to connect to, one for each `listen`; port 0 is the listening port. Where not given: "
        "the listening address.",
        "--advertise",
    ),
    Setting(
        "tls_certificate", PATH, None, "With it, every `listen` speaks TLS: the chain, as PEM.", "--tls-certificate"
    ),
    Setting("tls_key", PATH, None, "The certificate's private key, as PEM.", "--tls-key"),
    Setting(
        "tls_client_ca", PATH, None, "With it, clients must show a certificate it signed, as PEM.", "--tls-client-ca"
    ),
    Setting(
        "insecure",
        SWITCH,
        False,
        "Listen beyond loopback although there is no authentication yet: everybody who can connect may read, write "
        "and delete.",
        "--insecure",
    ),
    Setting(
        "durability",
        one_of("fsync", "page-cache"),
        _BROKER.durability.value,
        "What acks=all means: `fsync`, the message is on disk; `page-cache`, it is written, as in Apache Kafka, and a "
        "power loss may take it. A topic can differ (`clarion.durability`).",
        "--durability",
    ),
    Setting(
        "metrics",
        ADDRESS,
        None,
        "Where `/metrics`, `/healthz` and `/readyz` are served. Off unless given.",
        "--metrics",
    ),
    Setting("log_format", one_of("text", "json"), "text", "How log lines look, on stderr.", "--log-format"),
    Setting(
        "log_level", one_of("debug", "info", "warning", "error"), "info", "Which log lines are written.", "--log-level"
    ),
    _broker("node_id", whole_number(0, 2**31 - 1), "The broker's id; the data directory remembers it.", "--node-id"),
    _broker("auto_create_topics", SWITCH, "Whether a topic is made when a client first asks for it."),
    _broker("default_partitions", _COUNT, "Partitions of a topic that does not say how many."),
    _broker("offsets_partitions", _COUNT, "Partitions of `__consumer_offsets`; fixed once the topic exists."),
    _broker(
        "retention_check_seconds",
        seconds(0.05),
        "How often old messages are deleted: they are kept at most so much longer.",
    ),
    _broker("compaction_check_seconds", seconds(0.05), "How often compacted topics are looked at."),
    _broker("checkpoint_seconds", seconds(0.05), "How much of the log a start after a crash has to check again."),
    _broker(
        "group_initial_rebalance_delay_ms",
        _MILLISECONDS,
        "How long a new group waits for more members before it starts.",
    ),
    _broker("group_min_session_timeout_ms", whole_number(1), "The shortest session time-out a member may ask for."),
    _broker("group_max_session_timeout_ms", whole_number(1), "The longest."),
    _broker("group_consumer_heartbeat_interval_ms", whole_number(1), "How often members of KIP-848 groups are heard."),
    _broker("group_consumer_session_timeout_ms", whole_number(1), "How long such a member may be silent."),
    _broker("group_max_size", _COUNT, "Members of one group."),
    _broker("offsets_retention_minutes", whole_number(1), "How long an abandoned group's committed offsets are kept."),
    _broker(
        "producer_id_expiration_ms", whole_number(1), "How long an idle idempotent producer's sequence is remembered."
    ),
    _broker(
        "reserve_bytes",
        whole_number(-1),
        "Free bytes of the disk below which messages are refused, while reading, deleting and committing go on; "
        "-1 is 1 GB, or 5 % of a smaller disk.",
    ),
    _limit("connections_max", _COUNT, "Open connections."),
    _limit("frame_bytes_max", whole_number(1024, 2**31 - 1), "The largest request (a Produce)."),
    _limit(
        "small_frame_bytes_max",
        whole_number(1024, 2**31 - 1),
        "The largest request that is no Produce or Fetch; those that speak for a whole group may have a quarter of "
        "`limits.frame_bytes_max`.",
    ),
    _limit(
        "groups_memory_max",
        whole_number(1024 * 1024),
        "Memory for the members and offsets of all groups (an offset takes about 500 bytes). When it is full, what is "
        "not there yet must wait.",
    ),
    _limit("group_memory_max", whole_number(1024 * 1024), "Memory for the members of one group."),
    _limit(
        "frames_memory_max",
        whole_number(1024 * 1024),
        "Memory for requests that arrive or wait and for replies that are not sent, of all connections. "
        "Who wants more is not read from until there is room.",
    ),
    _limit(
        "connection_memory_max", whole_number(64 * 1024), "The same of one connection, unless it is a single request."
    ),
    _limit("requests_in_flight_max", _COUNT, "Unanswered requests of one connection; more wait in the socket."),
    _limit("frame_bytes_per_second_min", whole_number(1), "The least speed at which a request must arrive."),
    _limit(
        "frame_seconds_max",
        seconds(0.1),
        "How long a request may stay below that speed before its connection is closed; a tenth of it while others "
        "wait for memory.",
    ),
    _limit("idle_seconds_max", seconds(1), "A connection that is silent for so long is closed."),
    _limit("fetch_bytes_max", whole_number(1024, 2**31 - 1), "The most bytes in one answer to a Fetch."),
    _limit("fetch_sessions_max", _COUNT, "Incremental fetch sessions of all connections."),
    _limit(
        "open_files_max", whole_number(0), "Files of the log kept open; 0 takes a share of what the process may open."
    ),
    _limit(
        "producers_max",
        _COUNT,
        "Idempotent producers remembered; for more, the longest idle is forgotten.",
    ),
    _limit("partition_producers_max", _COUNT, "The same, of one partition."),
    _limit("partitions_max", _COUNT, "Partitions of all topics."),
    _limit("topic_partitions_max", _COUNT, "Partitions of one topic."),
    _limit("request_partitions_max", _COUNT, "Partitions that one request may make."),
    _limit("auto_created_per_request_max", _COUNT, "Topics that come into being by being asked for in one request."),
    _limit("auto_created_per_second_max", _COUNT, "Topics that come into being by being asked for, by all clients."),
)
BY_NAME: Final = {each.name: each for each in SETTINGS}
BROKER_NAMES: Final = tuple(
    name for name in BY_NAME if hasattr(_BROKER, name) and name not in ("data_dir", "durability")
)
LIMIT_NAMES: Final = tuple(name.removeprefix("limits.") for name in BY_NAME if name.startswith("limits."))
