"""Messages as webhooks: CloudEvents that any reader understands, and signatures that the reference library verifies."""

from __future__ import annotations

import base64
import json
from typing import NamedTuple
from urllib.parse import unquote
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks import Webhook as Verifier
from standardwebhooks import WebhookVerificationError

from clarion.consumers.cloud_events import (
    BATCH,
    STRUCTURED,
    Webhook,
    batch_webhook,
    message_id,
    signature,
    signed_headers,
    single_webhook,
)
from clarion.world import SystemClock

HEADERS = st.lists(st.tuples(st.text(max_size=9), st.binary()))
TOPIC_ID = UUID("11111111-2222-3333-4444-555555555555")
SECRET = "whsec_" + base64.b64encode(bytes(range(32))).decode()


class Message(NamedTuple):
    value: bytes | None = b'{"order": 1}'
    key: bytes | None = b"42"
    headers: tuple[tuple[str, bytes | None], ...] = ()
    offset: int = 7
    partition: int = 2
    deliveries: int = 1
    timestamp_ms: int = 1_700_000_000_123
    topic: str = "orders"
    topic_id: UUID = TOPIC_ID
    leader_epoch: int = 0


def attributes(webhook: Webhook) -> dict[str, str]:
    """Of a webhook in binary mode, as a receiver reads them."""
    return {name.removeprefix("ce-"): unquote(value) for name, value in webhook.headers.items() if name[:3] == "ce-"}


def test_a_value_that_is_json_is_the_data_of_a_structured_event() -> None:
    webhook = single_webhook("billing", Message(headers=(("trace", b"7"), ("raw", b"\xff"), ("none", None))))
    assert webhook.headers == {"content-type": STRUCTURED}
    event = json.loads(webhook.body)
    assert json.loads(event.pop("recordheaders")) == [
        {"name": "trace", "value": "7"},
        {"name": "raw", "valuebase64": "/w=="},
        {"name": "none"},
    ]
    assert event == {
        "specversion": "1.0",
        "id": webhook.id,
        "source": "/topics/orders/partitions/2",
        "type": "clarion.message",
        "time": "2023-11-14T22:13:20.123Z",
        "topic": "orders",
        "partition": "2",
        "offset": "7",
        "subscription": "billing",
        "deliveries": "1",
        "partitionkey": "42",
        "datacontenttype": "application/json",
        "data": {"order": 1},
    }


def test_json_is_sent_as_it_was_written() -> None:
    value = b'{ "big": 12345678901234567890.000, "a": 1, "a": 2,\n "\\u00e4": "\xc3\xa4" }'
    assert value in single_webhook("billing", Message(value=value)).body


@pytest.mark.parametrize("value", [b"hello", b"\xff\x00", b"", b"NaN", b"[1,]", b"\xef\xbb\xbf1", "1".encode("utf-16")])
def test_any_other_value_is_the_body_of_a_binary_event(value: bytes) -> None:
    webhook = single_webhook("billing", Message(value=value, key="grün %".encode()))
    assert webhook.body == value
    assert webhook.headers["content-type"] == "application/octet-stream"
    assert all(text.isascii() and text.isprintable() for text in webhook.headers.values())
    event = attributes(webhook)
    assert event["specversion"] == "1.0"
    assert event["id"] == webhook.id
    assert event["partitionkey"] == "grün %"
    assert event["offset"] == "7"


def test_attributes_that_are_too_large_for_headers_go_into_the_body() -> None:
    webhook = single_webhook("billing", Message(value=b"\xff", key=b"k" * 5_000))
    assert webhook.headers == {"content-type": STRUCTURED}
    event = json.loads(webhook.body)
    assert base64.b64decode(event["data_base64"]) == b"\xff"
    assert event["partitionkey"] == "k" * 5_000


def test_a_message_without_a_value_is_an_event_without_data() -> None:
    event = json.loads(single_webhook("billing", Message(value=None)).body)
    assert not {"data", "data_base64", "datacontenttype"} & event.keys()


@pytest.mark.parametrize("key", [b"\xff", b"", b"a\nb"])
def test_a_key_that_is_no_plain_text_is_in_base64(key: bytes) -> None:
    event = json.loads(single_webhook("billing", Message(key=key)).body)
    assert base64.b64decode(event["keybase64"]) == key
    assert "partitionkey" not in event


def test_a_header_whose_name_is_no_utf8_is_sent_all_the_same() -> None:
    for value in (b"1", b"\xff"):
        name = b"a\xff".decode("utf-8", "surrogateescape")
        sent = single_webhook("s", Message(value=value, headers=((name, b"7"),)))
        assert "a\ufffd" in unquote(sent.headers.get("ce-recordheaders", "")) + sent.body.decode("utf-8", "replace")


def test_a_time_that_no_calendar_has_is_left_out() -> None:
    assert "time" not in json.loads(single_webhook("billing", Message(timestamp_ms=2**62)).body)
    assert json.loads(single_webhook("billing", Message(timestamp_ms=-1)).body)["time"].startswith("1969-12-31")


def test_a_batch_is_a_list_of_structured_events() -> None:
    messages = [Message(offset=1), Message(offset=2, value=b"\xff"), Message(offset=3, value=None)]
    webhook = batch_webhook("billing", messages)
    assert webhook.headers == {"content-type": BATCH}
    events = json.loads(webhook.body)
    assert [one["id"] for one in events] == [message_id("billing", TOPIC_ID, 2, offset, 0) for offset in (1, 2, 3)]
    assert events[0]["data"] == {"order": 1}
    assert events[1]["data_base64"] == "/w=="
    assert webhook.id not in [one["id"] for one in events]
    assert webhook.id == batch_webhook("billing", messages).id
    assert webhook.id != batch_webhook("billing", messages[:2]).id


def test_the_id_is_the_same_in_every_try_and_another_for_every_message() -> None:
    assert single_webhook("a", Message()).id == single_webhook("a", Message(deliveries=5)).id
    places = [("a", TOPIC_ID, 0, 1), ("b", TOPIC_ID, 0, 1), ("a", UUID(int=1), 0, 1), ("a", TOPIC_ID, 1, 1)]
    ids = {message_id(*place, epoch) for place in [*places, ("a", TOPIC_ID, 0, 11)] for epoch in (0, 1, 11)}
    assert len(ids) == 15
    assert "." not in message_id("with.dots", TOPIC_ID, 0, 1, 0)  # which is what separates the parts that are signed


def test_the_id_of_a_message_never_changes_between_versions() -> None:
    """Receivers remember ids: whoever changes how they are made delivers everything under way twice."""
    assert message_id("billing", TOPIC_ID, 2, 7, 0) == "msg_0JIRLy9JWU7pHdGXLZ5AYqqbiHg"
    assert message_id("billing", TOPIC_ID, 2, 7, 3) == "msg_brdLcobzEVD-gNQJzcY_lfyZ2ec"


def test_another_message_in_the_place_of_one_that_was_lost_has_another_id() -> None:
    lost, another = Message(leader_epoch=3), Message(leader_epoch=4)
    assert single_webhook("billing", lost).id == single_webhook("billing", lost._replace(deliveries=2)).id
    assert single_webhook("billing", lost).id != single_webhook("billing", another).id


@given(st.text(max_size=200), st.binary(min_size=24, max_size=64))
def test_the_reference_library_verifies_what_is_signed(text: str, key: bytes) -> None:
    secret = "whsec_" + base64.b64encode(key).decode()
    webhook = Webhook("msg_1", {"content-type": "text/plain"}, text.encode(errors="replace"))
    headers = signed_headers(webhook, secret, SystemClock().now_ms())
    Verifier(secret).verify(webhook.body, headers, json_parse=False)


def test_what_was_changed_on_the_way_is_not_verified() -> None:
    webhook = single_webhook("billing", Message())
    headers = signed_headers(webhook, SECRET, SystemClock().now_ms())
    assert Verifier(SECRET).verify(webhook.body, headers)["data"] == {"order": 1}
    for changed in ({"webhook-id": "msg_2"}, {"webhook-signature": signature(SECRET, "msg_2", "1", b"")}):
        with pytest.raises(WebhookVerificationError):
            Verifier(SECRET).verify(webhook.body, {**headers, **changed})
    with pytest.raises(WebhookVerificationError):
        Verifier(SECRET).verify(webhook.body.replace(b"1}", b"2}"), headers)


@given(
    st.binary(max_size=50), st.none() | st.binary(max_size=20), st.lists(st.tuples(st.text(max_size=9), st.binary()))
)
def test_every_message_can_be_read_back(value: bytes, key: bytes | None, headers: list[tuple[str, bytes]]) -> None:
    webhook = single_webhook("billing", Message(value=value, key=key, headers=tuple(headers)))
    if webhook.headers["content-type"] == STRUCTURED:
        event = json.loads(webhook.body)
        read = json.dumps(event["data"]) if "data" in event else base64.b64decode(event["data_base64"])
        assert read == (json.dumps(json.loads(value)) if "data" in event else value)
    else:
        event = attributes(webhook)
        assert webhook.body == value
    told = event["partitionkey"].encode() if "partitionkey" in event else event.get("keybase64")
    assert (base64.b64decode(told) if "keybase64" in event else told) == key
    assert [one["name"] for one in json.loads(event.get("recordheaders", "[]"))] == [name for name, _ in headers]
