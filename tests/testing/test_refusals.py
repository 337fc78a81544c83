"""Every API in every version has the injected error where its clients look for it."""

from io import BytesIO
from random import Random
from typing import Any
from uuid import UUID

import pytest
from kio.index import load_request_schema
from kio.serial import entity_writer

from clarion.model.errors import ErrorCode
from clarion.testing import EmbeddedBroker, embedded
from clarion.wire.apis import API_VERSIONS, APIS, FETCH, PRODUCE, Api
from clarion.wire.bridge import encode
from tests.raw_client import RawClient, build
from tests.wire.messages_at_random import random_message

CODE = ErrorCode.NOT_COORDINATOR
CASES = [
    pytest.param(api, version, id=f"{api.name}-{version}")
    for api in APIS.values()
    for version in range(api.min_version, api.max_version + 1)
]


@pytest.fixture(scope="module")
def broker():
    with embedded(topics=["orders"]) as broker:
        yield broker


@pytest.mark.parametrize(("api", "version"), CASES)
def test_the_error_is_told_in_every_place_and_nowhere_else(broker: EmbeddedBroker, api: Api, version: int) -> None:
    with RawClient(broker.bootstrap) as client, broker.faults.fail(api.name, CODE) as fault:
        client.send_body(api.key, version, _request(api, version), flexible=api.is_flexible(version))
        _, answer = client.receive()
    assert fault.hits == 1
    codes = list(_codes(answer))
    assert CODE in codes, answer
    assert set(codes) <= {CODE, ErrorCode.NONE}


def _request(api: Api, version: int) -> bytes:
    """One that asks about something: a message that asks about nothing has no place for an error."""
    if api.key in HAND_WRITTEN:
        request = build(load_request_schema(api.key, version), HAND_WRITTEN[api.key])
        body = BytesIO()
        entity_writer(type(request))(body, request)
        return body.getvalue()
    messages = [random_message(api.request, api.key, version, "request", Random(seed)) for seed in range(30)]
    return max((encode(message, api.key, version, "request") for message in messages), key=len)


HAND_WRITTEN: dict[int, dict[str, Any]] = {
    PRODUCE: {
        "transactional_id": None,
        "acks": 1,
        "timeout": 1000,
        "topic_data": [
            {"name": "orders", "topic_id": UUID(int=7), "partition_data": [{"index": 0, "records": b"not looked at"}]}
        ],
    },
    FETCH: {
        "replica_id": -1,
        "max_wait": 0,
        "min_bytes": 1,
        "max_bytes": 100,
        "isolation_level": 0,
        "topics": [
            {
                "topic": "orders",
                "topic_id": UUID(int=7),
                "partitions": [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 100}],
            }
        ],
        "forgotten_topics_data": [],
    },
}


def _codes(answer: Any) -> Any:
    """Every error code in an answer, at any depth."""
    if isinstance(answer, tuple):
        for one in answer:
            yield from _codes(one)
    for name in getattr(answer, "__dataclass_fields__", ()):
        value = getattr(answer, name)
        if name == "error_code":
            yield int(value)
        else:
            yield from _codes(value)


@pytest.mark.parametrize("version", range(13))
def test_metadata_about_no_topic_has_no_place_for_an_error(broker: EmbeddedBroker, version: int) -> None:
    nothing: Any = [] if version else [{"name": "orders"}]
    with RawClient(broker.bootstrap) as client, broker.faults.fail("Metadata", "REBOOTSTRAP_REQUIRED") as fault:
        answer = client.ask("metadata", version, topics=nothing, allow_auto_topic_creation=False)
    assert answer.brokers
    assert fault.hits == 0


def test_metadata_of_all_topics_names_each_with_the_error(broker: EmbeddedBroker) -> None:
    with RawClient(broker.bootstrap) as client, broker.faults.fail("Metadata", "LEADER_NOT_AVAILABLE"):
        answer = client.ask("metadata", 12, topics=None, allow_auto_topic_creation=False)
    assert [(topic.name, topic.error_code) for topic in answer.topics] == [("orders", 5)]
    assert (answer.brokers[0].port, answer.controller_id) == (broker.port, 1)


def test_api_versions_still_tells_the_ranges(broker: EmbeddedBroker) -> None:
    with RawClient(broker.bootstrap) as client, broker.faults.fail(API_VERSIONS, 35):
        assert client.ask("api_versions", 0).api_keys


def test_a_fetch_session_goes_on_after_an_injected_error(broker: EmbeddedBroker) -> None:
    topic_id = broker._call(lambda inside: inside.image.topic("orders").id)
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000}
    first = {"session_id": 0, "session_epoch": 0, "topics": [{"topic_id": topic_id, "partitions": [partition]}]}
    ask = {"replica_id": -1, "max_wait": 0, "min_bytes": 0, "max_bytes": 1000, "forgotten_topics_data": []}
    with RawClient(broker.bootstrap) as client:
        begun = client.ask("fetch", 13, **ask, **first)
        with broker.faults.fail("Fetch", "NOT_LEADER_OR_FOLLOWER"):
            failed = client.ask("fetch", 13, **ask, session_id=begun.session_id, session_epoch=1, topics=[])
        after = client.ask("fetch", 13, **ask, session_id=begun.session_id, session_epoch=2, topics=[])
    assert [one.error_code for one in failed.responses[0].partitions] == [6]
    assert (after.error_code, [one.error_code for one in after.responses[0].partitions]) == (0, [0])
