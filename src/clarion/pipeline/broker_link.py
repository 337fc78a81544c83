"""What the driver asks of a broker beside messages: which topics there are and how they are set, to make those that a
pipeline writes to, and to hold deletion back for an archive.

CreateTopics v4, DeleteGroups v1, DescribeConfigs v1 and IncrementalAlterConfigs v0, over the connector's own client, so
that one set of options (TLS among them) serves everything that a pipeline does.
"""

from __future__ import annotations

import logging
import re
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Final, TypeVar

from clarion.model.errors import ErrorCode, KafkaError
from clarion.model.ids import TopicPartition
from clarion.pipeline.connector_options import OptionError, connection_settings
from clarion.pipeline.kafka.client import Client
from clarion.pipeline.kafka.connection import ClientApi
from clarion.pipeline.kafka.errors import ConnectionLostError, refusal
from clarion.pipeline.kafka.offsets import commit_offsets, coordinator
from clarion.pipeline.kafka.settings import address
from clarion.wire.cursor import FieldReader, FieldWriter

CREATE_TOPICS: Final = ClientApi("CreateTopics", 19, 4, is_flexible=False)
DELETE_GROUPS: Final = ClientApi("DeleteGroups", 42, 1, is_flexible=False)
DESCRIBE_CONFIGS: Final = ClientApi("DescribeConfigs", 32, 1, is_flexible=False)
INCREMENTAL_ALTER_CONFIGS: Final = ClientApi("IncrementalAlterConfigs", 44, 0, is_flexible=False)

HOLD_GROUPS: Final = "clarion.retention.hold.groups"
_TOPIC: Final = 2
_APPEND, _SUBTRACT = 2, 3

_PATIENCE_MS = 2_000  # whoever asks us asks again; a live view must not freeze for longer
_REQUEST_MS = 10_000
_QUARANTINE_BYTES_MAX = 1_048_588 + 65_536  # the broker's default and room for the headers that say what was wrong
_AS_THE_BROKER_DECIDES = -1

T = TypeVar("T")

log = logging.getLogger("clarion.pipeline")

Layout = dict[str, tuple[str, int]]  # topic → its id and how many partitions it has


class BrokerAwayError(Exception):
    """Nothing answers there, or what answers is no broker, or it says no."""


class BrokerLink:
    def __init__(self, options: Mapping[str, str]) -> None:
        self.bootstrap = options["bootstrap.servers"]
        try:
            settings = connection_settings(options)
        except OptionError as error:
            raise BrokerAwayError(str(error)) from error
        self._client = Client(replace(settings, api_timeout_ms=_PATIENCE_MS, connect_timeout_ms=_PATIENCE_MS))

    # Topics

    def topics(self) -> set[str]:
        self._check_that_somebody_listens()
        with self._talking():
            return set(self._client.topics(None))

    def matching(self, names: Sequence[str], pattern: str | None) -> list[str]:
        """The topics that are meant, as they are now."""
        if pattern is None:
            return list(names)
        return sorted(each for each in self.topics() if re.fullmatch(pattern, each) and not each.startswith("__"))

    def layout(self, names: Iterable[str]) -> Layout:
        """A topic that is not there is missing from the answer."""
        with self._talking():
            found = self._client.topics(sorted(set(names)))
        return {name: (str(each.topic_id), len(each.partitions)) for name, each in found.items()}

    def make_topic(self, name: str, partitions: int | None, config: Mapping[str, str] | None = None) -> None:
        """Make a topic unless it is there."""
        if name in self.topics():
            return
        request = _create_request(name, partitions or _AS_THE_BROKER_DECIDES, config or {})
        error_code, reason = self._ask(CREATE_TOPICS, request, _read_created)
        if error_code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):  # another run may be faster
            raise BrokerAwayError(f"{self.bootstrap}: {refusal(error_code, f'create topic {name}', reason)}")

    def make_quarantine(self, name: str) -> None:
        self.make_topic(name, 1, {"max.message.bytes": str(_QUARANTINE_BYTES_MAX)})

    # Settings

    def settings(self, name: str) -> dict[str, str]:
        """A topic's settings as the broker applies them."""

        def all_settings(to: FieldWriter, topic: str) -> None:
            to.int8(_TOPIC).string(topic).int32(-1)

        return self._ask(DESCRIBE_CONFIGS, FieldWriter().array([name], all_settings).boolean(False).out, _read_settings)

    def hold(self, names: Iterable[str], group: str) -> None:
        """From now on the broker deletes nothing of these topics that the group has not committed."""
        self._change_hold(names, group, is_held=True)

    def release(self, names: Iterable[str], group: str) -> None:
        self._change_hold(names, group, is_held=False)

    def _change_hold(self, names: Iterable[str], group: str, *, is_held: bool) -> None:
        for name in names:
            settings = self.settings(name)
            if HOLD_GROUPS not in settings:
                # Another broker than Clarion. The archive works all the same, as long as it keeps up.
                if is_held:
                    log.warning("topic %s: this broker cannot hold deletion back for %s", name, group)
            elif (group in settings[HOLD_GROUPS].split(",")) != is_held:
                self._alter(name, HOLD_GROUPS, _APPEND if is_held else _SUBTRACT, group)

    def _alter(self, name: str, setting: str, how: int, value: str) -> None:
        def resource(to: FieldWriter, topic: str) -> None:
            to.int8(_TOPIC).string(topic).array([setting], lambda to, each: to.string(each).int8(how).string(value))

        self._ask(INCREMENTAL_ALTER_CONFIGS, FieldWriter().array([name], resource).boolean(False).out, _read_altered)

    # Groups

    def commit(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Say how far a group has come; a stream does so by itself, a batch does not."""
        if not offsets:
            return
        with self._talking():
            self._client.topics([])  # who the brokers are
            commit_offsets(self._client, group, offsets, timeout_ms=self._client.settings.api_timeout_ms)

    def forget_group(self, group: str) -> None:
        """Drop the offsets that the broker shows as a pipeline's progress. A group that is not there is forgotten."""
        with self._talking():
            error_code = self._client.keep_trying(lambda: self._forget(group))
        if error_code not in (ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND):
            raise BrokerAwayError(f"{self.bootstrap}: {refusal(error_code, f'delete group {group}')}")

    def _forget(self, group: str) -> int:
        self._client.topics([])  # who the brokers are
        request = FieldWriter().array([group], FieldWriter.string).out
        answer = self._client.ask(coordinator(self._client, group), DELETE_GROUPS, request)
        answer.int32()  # throttle time
        return answer.array(lambda one: (one.text(), one.int16()))[0][1]

    # Talking

    def _ask(self, api: ClientApi, body: bytearray, read: Callable[[FieldReader], T]) -> T:
        with self._talking():
            return self._client.keep_trying(lambda: read(self._client.ask_any(api, body)))

    @contextmanager
    def _talking(self) -> Iterator[None]:
        """What goes wrong within is a broker that is away; the connections end with it."""
        try:
            yield
        except KafkaError as error:
            raise BrokerAwayError(f"{self.bootstrap}: {error}") from error
        except ConnectionLostError as error:
            raise self._away(error) from error
        finally:
            self._client.close()

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
        raise self._away(reason)

    def _away(self, error: Exception | None) -> BrokerAwayError:
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


def _read_settings(answer: FieldReader) -> dict[str, str]:
    answer.int32()  # throttle time
    (found,) = answer.array(_read_described)
    return found


def _read_described(answer: FieldReader) -> dict[str, str]:
    error_code, reason = answer.int16(), answer.nullable_string()
    answer.int8()
    name = answer.text()
    settings = answer.array(_read_setting)
    if error_code:
        raise refusal(error_code, f"settings of topic {name}", reason)
    return {each: value for each, value in settings if value is not None}


def _read_setting(answer: FieldReader) -> tuple[str, str | None]:
    name, value = answer.text(), answer.nullable_string()
    answer.boolean()  # read only
    answer.int8()  # source
    answer.boolean()  # sensitive
    answer.array(lambda each: (each.text(), each.nullable_string(), each.int8()))  # synonyms
    return name, value


def _read_altered(answer: FieldReader) -> None:
    answer.int32()  # throttle time
    for error_code, reason, _, name in answer.array(
        lambda each: (each.int16(), each.nullable_string(), each.int8(), each.text())
    ):
        if error_code:
            raise refusal(error_code, f"settings of topic {name}", reason)
