"""What the driver asks of a broker before a pipeline runs: which topics there are, and to make those it writes to."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

_ANSWER_SECONDS_MAX = 10.0
_QUARANTINE_BYTES_MAX = 1_048_588 + 65_536  # the broker's default and room for the headers that say what was wrong
_AS_THE_BROKER_DECIDES = -1


class BrokerAwayError(Exception):
    """Nothing answers there, or what answers is no broker."""


class BrokerLink:
    def __init__(self, options: Mapping[str, str]) -> None:
        """`options` are the connector's."""
        self.bootstrap = options["bootstrap.servers"]
        self._client = {
            name.removeprefix("kafka."): value for name, value in options.items() if name.startswith("kafka.")
        }

    def topics(self) -> set[str]:
        from confluent_kafka import KafkaException

        admin = self._admin()
        try:
            return set(admin.list_topics(timeout=_ANSWER_SECONDS_MAX).topics)
        except KafkaException as error:
            raise BrokerAwayError(f"nothing answers at {self.bootstrap}; is `clarion serve` running?") from error

    def make_topic(self, name: str, partitions: int | None, config: Mapping[str, str] | None = None) -> None:
        """Make a topic unless it is there."""
        if name in self.topics():
            return
        from confluent_kafka import KafkaError, KafkaException
        from confluent_kafka.cimpl import NewTopic

        wanted = NewTopic(name, partitions or _AS_THE_BROKER_DECIDES, -1, config=dict(config or {}))
        admin = self._admin()
        try:
            admin.create_topics([wanted])[name].result(_ANSWER_SECONDS_MAX)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:  # another run was faster
                raise BrokerAwayError(f"cannot make topic {name} at {self.bootstrap}: {error.args[0].str()}") from error

    def make_quarantine(self, name: str) -> None:
        self.make_topic(name, 1, {"max.message.bytes": str(_QUARANTINE_BYTES_MAX)})

    def forget_group(self, group: str) -> None:
        """Drop the offsets that the broker shows as a pipeline's progress. A group that is not there is forgotten."""
        from confluent_kafka import KafkaError, KafkaException

        admin = self._admin()
        try:
            admin.delete_consumer_groups([group])[group].result(_ANSWER_SECONDS_MAX)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.GROUP_ID_NOT_FOUND:
                raise BrokerAwayError(
                    f"cannot forget group {group} at {self.bootstrap}: {error.args[0].str()}"
                ) from error

    def _admin(self) -> AdminClient:
        from confluent_kafka.admin import AdminClient

        quiet = logging.getLogger("clarion.librdkafka")
        quiet.propagate = False
        quiet.addHandler(logging.NullHandler())
        settings: dict[str, Any] = {
            "bootstrap.servers": self.bootstrap,
            "client.id": "clarion-pipeline",
            **self._client,
        }
        return AdminClient(settings, logger=quiet)
