"""Topics as a broker knows them: found by their name or their id, made by being asked for, and similar ones."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from clarion.cli.errors import CliError, UsageError
from clarion.cli.link import REQUEST_SECONDS_MAX, Link, plain_errors, result_of
from clarion.cli.usage_errors import did_you_mean
from clarion.model.errors import KafkaError
from clarion.model.ids import NO_TOPIC_ID, TopicId, topic_id_of
from clarion.model.names import check_topic_name

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

_ASK_AGAIN_SECONDS: Final = 3.0  # between two looks at whether TLS failed


class NoTopicError(CliError):
    """There is no topic of that name."""


def describe_topic(admin: AdminClient, link: Link, told: str) -> Any:
    """A topic's description, with its own name, by that or, where no topic has it, by its id; where there is none, an
    error that names a similar one."""
    check_name(told)
    try:
        return _by_name(admin, link, told)
    except NoTopicError:
        topic_id = topic_id_of(told)
        name = None if topic_id in (None, NO_TOPIC_ID) else _name_of(link, topic_id)
        if name is None:
            raise
    return _by_name(admin, link, name)


def _by_name(admin: AdminClient, link: Link, name: str) -> Any:
    from confluent_kafka import KafkaError as ClientError
    from confluent_kafka import KafkaException, TopicCollection

    future = admin.describe_topics(TopicCollection([name]))[name]
    try:
        return result_of(future, link, f"topic {name}")
    except CliError as error:
        cause = error.__cause__
        if isinstance(cause, KafkaException) and cause.args[0].code() == ClientError.UNKNOWN_TOPIC_OR_PART:
            known = [each for each in all_topics(admin, link) if not each.startswith("__")]
            raise NoTopicError(f"there is no topic {name}{did_you_mean(name, known)}") from cause
        raise


def _name_of(link: Link, topic_id: TopicId) -> str | None:
    """confluent-kafka has no words to ask for it."""
    from clarion.cli.own_channel import can_ask, with_channel
    from clarion.wire.apis import METADATA
    from clarion.wire.messages.metadata import MetadataRequest, MetadataRequestTopic

    if not can_ask(link):
        return None
    request = MetadataRequest(topics=(MetadataRequestTopic(topic_id=topic_id),), allow_auto_topic_creation=False)
    (found,) = with_channel(link, lambda channel: channel.ask(METADATA, request)).topics
    return None if found.error_code else str(found.name)


def all_topics(admin: AdminClient, link: Link) -> dict[str, Any]:
    return dict(_metadata(admin, link).topics)


def ask_for_topic(admin: AdminClient, link: Link, name: str) -> bool:
    """Ask as clients do that are about to write: many brokers make the topic then. Whether it is there now."""
    found = _metadata(admin, link, name).topics.get(name)
    return found is not None and (found.error is None or found.error.retriable())


def _metadata(admin: AdminClient, link: Link, topic: str | None = None) -> Any:
    from confluent_kafka import KafkaError as ClientError
    from confluent_kafka import KafkaException

    deadline = time.monotonic() + REQUEST_SECONDS_MAX
    with plain_errors(link):
        while True:
            try:
                return admin.list_topics(topic, timeout=_ASK_AGAIN_SECONDS)
            except KafkaException as error:
                is_silence = error.args[0].code() in (ClientError._TRANSPORT, ClientError._TIMED_OUT)
                if not is_silence or link.tls_trouble() or time.monotonic() > deadline:
                    raise


def check_name(name: str) -> None:
    try:
        check_topic_name(name)
    except KafkaError as error:
        raise UsageError(error.message) from error
