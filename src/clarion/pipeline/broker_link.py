"""What the driver asks of a broker before a pipeline runs: which topics there are, and to make those it writes to.

CreateTopics v4 and DeleteGroups v1, over the connector's own client, so that one set of options (TLS among them) serves
everything that a pipeline does.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from clarion.model.errors import ErrorCode, KafkaError
from clarion.pipeline.connector_options import OptionError, Options, client_settings
from clarion.pipeline.kafka.client import Client
from clarion.pipeline.kafka.connection import Api
from clarion.pipeline.kafka.errors import ConnectionLostError, refusal
from clarion.pipeline.kafka.offsets import FIND_COORDINATOR
from clarion.pipeline.kafka.settings import address
from clarion.wire.cursor import FieldReader, FieldWriter

CREATE_TOPICS: Final = Api("CreateTopics", 19, 4, is_flexible=False)
DELETE_GROUPS: Final = Api("DeleteGroups", 42, 1, is_flexible=False)

_PATIENCE_MS = 2_000  # whoever asks us asks again; a live view must not freeze for longer
_REQUEST_MS = 10_000
_QUARANTINE_BYTES_MAX = 1_048_588 + 65_536  # the broker's default and room for the headers that say what was wrong
_AS_THE_BROKER_DECIDES = -1


class BrokerAwayError(Exception):
    """Nothing answers there, or what answers is no broker, or it says no."""


class BrokerLink:
    def __init__(self, options: Mapping[str, str]) -> None:
        """`options` are the connector's; those that are not about the connection are not looked at."""
        self.bootstrap = options["bootstrap.servers"]
        known = {name: value for name, value in options.items() if "." in name}
        try:
            settings = client_settings(Options(known, (), ()))
        except OptionError as error:
            raise BrokerAwayError(str(error)) from error
        self._client = Client(replace(settings, api_timeout_ms=_PATIENCE_MS, connect_timeout_ms=_PATIENCE_MS))

    def topics(self) -> set[str]:
        self._check_that_somebody_listens()
        try:
            return set(self._client.topics(None))
        except (ConnectionLostError, KafkaError) as error:
            raise self._away(error) from error
        finally:
            self._client.close()

    def make_topic(self, name: str, partitions: int | None, config: Mapping[str, str] | None = None) -> None:
        """Make a topic unless it is there."""
        if name in self.topics():
            return
        body = _create_request(name, partitions or _AS_THE_BROKER_DECIDES, config or {})
        try:
            error_code, reason = _read_created(
                self._client.keep_trying(lambda: self._client.ask_any(CREATE_TOPICS, body))
            )
        except ConnectionLostError as error:
            raise self._away(error) from error
        finally:
            self._client.close()
        if error_code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):  # another run may be faster
            raise BrokerAwayError(f"{self.bootstrap}: {refusal(error_code, f'create topic {name}', reason)}")

    def _check_that_somebody_listens(self) -> None:
        """Where nobody does, waiting for an answer only hides it: whoever may wait asks again."""
        reason: OSError | None = None
        for server in self._client.settings.bootstrap_servers:
            try:
                socket.create_connection(address(server), _PATIENCE_MS / 1000).close()
            except OSError as error:
                reason = error
            else:
                return
        raise BrokerAwayError(f"nothing answers at {self.bootstrap}; is `clarion serve` running? ({reason})")

    def make_quarantine(self, name: str) -> None:
        self.make_topic(name, 1, {"max.message.bytes": str(_QUARANTINE_BYTES_MAX)})

    def forget_group(self, group: str) -> None:
        """Drop the offsets that the broker shows as a pipeline's progress. A group that is not there is forgotten."""
        try:
            error_code = self._client.keep_trying(lambda: self._forget(group))
        except (ConnectionLostError, KafkaError) as error:
            raise self._away(error) from error
        finally:
            self._client.close()
        if error_code not in (ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND):
            raise BrokerAwayError(f"{self.bootstrap}: {refusal(error_code, f'delete group {group}')}")

    def _forget(self, group: str) -> int:
        self._client.topics([])  # who the brokers are
        coordinator = _read_coordinator(self._client.ask_any(FIND_COORDINATOR, FieldWriter().string(group).int8(0).out))
        answer = self._client.ask(coordinator, DELETE_GROUPS, FieldWriter().array([group], FieldWriter.string).out)
        answer.int32()  # throttle time
        return answer.array(lambda one: (one.text(), one.int16()))[0][1]

    def _away(self, error: Exception) -> BrokerAwayError:
        if isinstance(error, KafkaError):
            return BrokerAwayError(f"{self.bootstrap}: {error}")
        return BrokerAwayError(f"nothing answers at {self.bootstrap}; is `clarion serve` running? ({error})")


def _create_request(name: str, partitions: int, config: Mapping[str, str]) -> bytearray:
    def one_setting(to: FieldWriter, setting: tuple[str, str]) -> None:
        to.string(setting[0]).string(setting[1])

    to = FieldWriter().int32(1).string(name).int32(partitions).int16(-1).int32(0)
    return to.array(list(config.items()), one_setting).int32(_REQUEST_MS).boolean(False).out


def _read_created(answer: FieldReader) -> tuple[int, str | None]:
    answer.int32()  # throttle time
    (created,) = answer.array(lambda one: (one.text(), one.int16(), one.nullable_string()))
    return created[1], created[2]


def _read_coordinator(answer: FieldReader) -> int:
    answer.int32()  # throttle time
    error_code, message, node = answer.int16(), answer.nullable_string(), answer.int32()
    if error_code:
        raise refusal(error_code, "group coordinator", message)
    return node
