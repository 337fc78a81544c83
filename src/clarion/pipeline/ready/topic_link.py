"""What ready-made pipelines ask of a broker beside messages: topic ids, settings, and to hold deletion back.

DescribeConfigs v1 and IncrementalAlterConfigs v0.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, TypeVar

from clarion.model.errors import KafkaError
from clarion.pipeline.broker_link import BrokerLink
from clarion.pipeline.kafka.connection import Api
from clarion.pipeline.kafka.errors import ConnectionLostError, refusal
from clarion.pipeline.kafka.offsets import TopicPartition, commit_offsets
from clarion.wire.cursor import FieldReader, FieldWriter

DESCRIBE_CONFIGS: Final = Api("DescribeConfigs", 32, 1, is_flexible=False)
INCREMENTAL_ALTER_CONFIGS: Final = Api("IncrementalAlterConfigs", 44, 0, is_flexible=False)

HOLD_GROUPS: Final = "clarion.retention.hold.groups"
_TOPIC: Final = 2
_APPEND, _SUBTRACT = 2, 3

T = TypeVar("T")

log = logging.getLogger("clarion.pipeline")

Layout = dict[str, tuple[str, int]]  # topic → its id and how many partitions it has


class TopicLink(BrokerLink):
    def layout(self, names: Iterable[str]) -> Layout:
        """A topic that is not there is missing from the answer."""
        try:
            found = self._client.topics(sorted(set(names)))
        except (ConnectionLostError, KafkaError) as error:
            raise self._away(error) from error
        finally:
            self._client.close()
        return {name: (str(each.topic_id), len(each.partitions)) for name, each in found.items()}

    def settings(self, name: str) -> dict[str, str]:
        """A topic's settings as the broker applies them."""
        body = FieldWriter().array([name], _resource_without_names).boolean(False).out
        return self._asked(DESCRIBE_CONFIGS, body, _read_settings)

    def hold(self, names: Iterable[str], group: str) -> None:
        """From now on the broker deletes nothing of these topics that the group has not committed."""
        self._change_hold(names, group, is_held=True)

    def release(self, names: Iterable[str], group: str) -> None:
        self._change_hold(names, group, is_held=False)

    def commit(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Say how far a group has come; a stream does so by itself, a batch does not."""
        if not offsets:
            return
        try:
            self._client.topics([])  # who the brokers are
            commit_offsets(self._client, group, offsets, timeout_ms=self._client.settings.api_timeout_ms)
        except (ConnectionLostError, KafkaError) as error:
            raise self._away(error) from error
        finally:
            self._client.close()

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

        body = FieldWriter().array([name], resource).boolean(False).out
        self._asked(INCREMENTAL_ALTER_CONFIGS, body, _read_altered)

    def _asked(self, api: Api, body: bytearray, read: Callable[[FieldReader], T]) -> T:
        try:
            return self._client.keep_trying(lambda: read(self._client.ask_any(api, body)))
        except (ConnectionLostError, KafkaError) as error:
            raise self._away(error) from error
        finally:
            self._client.close()


def names_matching(link: BrokerLink, names: Sequence[str], pattern: str | None) -> list[str]:
    """The topics that are meant, as they are now."""
    if pattern is None:
        return list(names)
    return sorted(each for each in link.topics() if re.fullmatch(pattern, each) and not each.startswith("__"))


def _resource_without_names(to: FieldWriter, topic: str) -> None:
    to.int8(_TOPIC).string(topic).int32(-1)  # all settings


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
