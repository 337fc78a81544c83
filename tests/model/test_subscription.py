"""Subscriptions as they come from outside: taken as meant, or refused with what to write."""

import base64
from contextlib import suppress
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clarion.model.errors import KafkaError
from clarion.model.group_settings import ConsumerTimes, parse_group_settings
from clarion.model.subscription import (
    ACK_TIMEOUT_MS,
    CONSUMED,
    DELIVERIES,
    FIELD_NAMES,
    NAME_LENGTH_MAX,
    WINDOW,
    PushEndpoint,
    Subscription,
)

SECRET = "whsec_" + base64.b64encode(bytes(24)).decode()


def subscription(**changes) -> Subscription:
    return Subscription.from_json({"name": "billing", "topics": ["orders"], **changes})


def test_only_a_name_and_topics_must_be_said():
    assert subscription() == Subscription(name="billing", topics=("orders",))


def test_durations_are_written_as_people_do():
    billing = subscription(retention="14d", ack_timeout="1m30s", backoff_min="10s", backoff_max="1h", message_ttl="2h")
    assert billing.retention_ms == 14 * 86_400_000
    assert billing.ack_timeout_ms == 90_000
    assert (billing.backoff_min_ms, billing.backoff_max_ms) == (10_000, 3_600_000)
    assert billing.message_ttl_ms == 7_200_000
    assert subscription(ack_timeout=45_000).ack_timeout_ms == 45_000


def test_retention_is_the_topics_or_until_consumed_or_a_time():
    assert subscription().retention_ms is None
    assert subscription(retention="topic").retention_ms is None
    assert subscription(retention="consumed").retention_ms == CONSUMED
    assert subscription(retention="consumed").to_json()["retention"] == "consumed"


def test_so_long_ago_is_a_start_in_kafkas_words():
    assert subscription(start="1h").start == "by_duration:PT3600S"
    assert subscription(start="250ms").start == "by_duration:PT0.250S"
    assert subscription(start="by_duration:P1D").start == "by_duration:P1D"


def test_dead_letters_have_a_topic_of_the_subscriptions_name_unless_one_is_named():
    assert subscription().dead_letters == "billing.dead-letters"
    assert subscription(dead_letter_topic="lost").dead_letters == "lost"


def test_an_address_is_enough_for_an_endpoint():
    pushed = subscription(push="https://example.org/hook")
    assert pushed.push == PushEndpoint(url="https://example.org/hook")


def test_the_secret_of_an_endpoint_is_shown_only_when_asked_for():
    pushed = subscription(push={"url": "https://example.org/hook", "secret": SECRET})
    assert SECRET not in str(pushed.to_json())
    assert Subscription.from_json(pushed.to_json(with_secret=True)) == pushed


names = st.from_regex(r"[a-zA-Z0-9_-]{1,30}", fullmatch=True)
texts = st.text(st.characters(codec="ascii", min_codepoint=0x20, max_codepoint=0x7E), max_size=20)
endpoints = st.builds(
    PushEndpoint,
    url=names.map("https://{}.example.org/hook".format),
    secret=st.binary(min_size=24, max_size=64).map(lambda raw: "whsec_" + base64.b64encode(raw).decode()),
    batch_max=st.integers(1, 1_000),
    ordered=st.booleans(),
    timeout_ms=st.integers(100, 300_000),
    headers=st.dictionaries(names.map("x-{}".format), texts, max_size=3).map(lambda found: tuple(found.items())),
    allow_private=st.booleans(),
)
queues = st.builds(
    Subscription,
    name=names,
    topics=st.lists(names.map("t-{}".format), min_size=1, max_size=3, unique=True).map(tuple),
    push=st.none() | endpoints,
    filter=st.none() | st.text(min_size=1, max_size=20),
    retention_ms=st.sampled_from([None, CONSUMED]) | st.integers(1_000, 10**12),
    ack_timeout_ms=st.integers(*ACK_TIMEOUT_MS),
    max_deliveries=st.integers(*DELIVERIES),
    backoff_min_ms=st.integers(0, 1_000),
    backoff_max_ms=st.integers(1_000, 86_400_000),
    dead_letter_topic=st.none() | names.map("lost-{}".format),
    per_key_order=st.booleans(),
    window=st.integers(*WINDOW),
    message_ttl_ms=st.none() | st.integers(1, 10**12),
    start=st.sampled_from(["earliest", "latest", "by_duration:PT1H"]),
    paused=st.booleans(),
    created_ms=st.integers(0, 4 * 10**12),
    revision=st.integers(0, 2**63),
    guarantee=st.sampled_from(["at-least-once", "at-most-once"]),
)


@given(queues)
def test_what_is_written_is_read_as_the_same(queue):
    assert Subscription.from_json(queue.to_json(with_secret=True)) == queue


@given(queues)
def test_what_kafkas_consumers_see_of_a_queue_is_what_kafka_allows(queue):
    assert parse_group_settings(queue.group_settings(), ConsumerTimes(45_000, 5_000))


def test_kafkas_consumers_see_a_queues_rules():
    queue = subscription(ack_timeout="45s", max_deliveries=7, window=2_500, start="latest")
    assert queue.group_settings() == {
        "share.record.lock.duration.ms": "45000",
        "share.delivery.count.limit": "7",
        "share.partition.max.record.locks": "2500",
        "share.auto.offset.reset": "latest",
    }
    assert subscription(mode="stream").group_settings() == {}


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from(sorted(FIELD_NAMES)) | st.text(max_size=8), values))
def test_anything_from_outside_is_a_subscription_or_refused(data):
    with suppress(KafkaError):
        Subscription.from_json(data).check()


@given(st.fixed_dictionaries({"url": st.text()}, optional={"headers": values, "secret": st.text(), "timeout": values}))
def test_anything_from_outside_is_an_endpoint_or_refused(data):
    with suppress(KafkaError):
        PushEndpoint.from_json(data).check()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"name": ""}, "cannot be a subscription's name"),
        ({"name": "a b"}, "letters, digits"),
        ({"name": "n" * (NAME_LENGTH_MAX + 1)}, f"1 to {NAME_LENGTH_MAX}"),
        ({"topics": []}, "either topics"),
        ({"pattern": "o.*"}, "either topics"),
        ({"topics": "orders"}, "is a list"),
        ({"topics": ["orders", "orders"]}, "named twice"),
        ({"topics": ["__consumer_offsets"]}, "the broker's own"),
        ({"topics": [f"t{n}" for n in range(1_001)]}, "write a pattern"),
        ({"mode": "both"}, "mode is stream or queue"),
        ({"guarantee": "exactly-once"}, "at-least-once or at-most-once"),
        ({"retention": "long"}, "write for example 90s"),
        ({"retention": "1ms"}, "retention is from 1s"),
        ({"ack_timeout": "10ms"}, "ack_timeout is from 1s to 12h"),
        ({"ack_timeout": True}, "ack_timeout"),
        ({"max_deliveries": 0}, "max_deliveries is from 1 to 100"),
        ({"max_deliveries": "5"}, "whole number"),
        ({"backoff_min": "2m", "backoff_max": "1m"}, "longer than backoff_max"),
        ({"window": 0}, "window is from 1 to 10000"),
        ({"start": "yesterday"}, "earliest, latest, or how long ago"),
        ({"filter": ""}, "leave it out"),
        ({"filter": "x" * 4_097}, "1 to 4096 characters"),
        ({"dead_letter_topic": "orders"}, "would come back to it"),
        ({"topics": ["billing.dead-letters"]}, "would come back to it"),
        ({"per_key_order": 1}, "true or false"),
        ({"per_key_order": True, "mode": "stream"}, "is for queues"),
        ({"push": "https://example.org/hook", "mode": "stream"}, "push is for queues"),
        ({"colour": "blue"}, "has no field 'colour'; it has ack_timeout"),
        ({"created": "soon"}, "is a time such as"),
        ({"push": {"url": "ftp://example.org"}}, "an address such as https"),
        ({"push": {"url": "https://user:word@example.org"}}, "must not name a user"),
        ({"push": {"url": "https://example.org", "secret": "guess"}}, "leave it out and one is made"),
        ({"push": {"url": "https://example.org", "headers": {"Webhook-Id": "1"}}}, "written for you"),
        ({"push": {"url": "https://example.org", "headers": {"x": "a\r\nb: c"}}}, "one line"),
        ({"push": {"url": "https://example.org", "batch_max": 0}}, "push.batch_max is from 1 to 1000"),
        ({"push": {"url": "https://example.org", "timeout": "1h"}}, "push.timeout is from 100ms to 5m"),
        ({"push": {"address": "https://example.org"}}, "push has no field 'address'"),
    ],
)
def test_a_refusal_says_what_to_write(changes, says):
    with pytest.raises(KafkaError, match=says):
        subscription(**changes)


def test_a_change_is_to_the_fields_that_are_said():
    before = subscription(ack_timeout="45s", push={"url": "https://example.org", "secret": SECRET})
    after = before.changed({"max_deliveries": 9, "push": {"url": "https://example.org/other"}})
    assert after.max_deliveries == 9
    assert after.ack_timeout_ms == 45_000
    assert after.push is not None
    assert (after.push.url, after.push.secret) == ("https://example.org/other", SECRET)
    assert before.changed({"push": None}).push is None


def test_what_headers_say_is_not_shown_and_stays_where_it_is_sent_back_as_it_was_shown():
    endpoint = {"url": "https://example.org", "secret": SECRET, "headers": {"Authorization": "Bearer 1", "x": "2"}}
    before = subscription(push=endpoint)
    shown = before.to_json()["push"]
    assert shown["headers"] == {"Authorization": "(hidden)", "x": "(hidden)"}
    assert before.changed({"push": shown}) == before
    after = before.changed({"push": {**shown, "headers": {"authorization": "(hidden)", "x": "3"}}}).push
    assert after is not None
    assert after.headers == (("authorization", "Bearer 1"), ("x", "3"))
    assert Subscription.from_json(before.to_json(with_secret=True)) == before


def test_hidden_headers_do_not_go_to_another_place():
    """Who may change a subscription could read them there."""
    before = Subscription.from_json(
        {
            "name": "s",
            "topics": ["t"],
            "push": {"url": "https://example.org/hook", "headers": {"Authorization": "Bearer 1"}},
        }
    )
    elsewhere = {"url": "https://evil.example/hook", "headers": {"Authorization": "(hidden)"}}
    with pytest.raises(KafkaError, match="say what its headers are"):
        before.changed({"push": elsewhere})
    told = before.changed({"push": {**elsewhere, "headers": {"Authorization": "Bearer 2"}}}).push
    assert told is not None
    assert told.headers == (("Authorization", "Bearer 2"),)
    moved = before.changed({"push": {**elsewhere, "url": "https://Example.org/other"}}).push
    assert moved is not None
    assert moved.headers == (("Authorization", "Bearer 1"),)


def test_a_name_is_never_changed():
    with pytest.raises(KafkaError, match="name cannot be changed"):
        subscription().changed({"name": "other"})
    assert subscription().changed({"name": "billing"}) == subscription()


def test_every_field_has_a_name_outside():
    inside = {one.name.removesuffix("_ms") for one in fields(Subscription)}
    assert inside == {*FIELD_NAMES, "begins"}, "where it begins is the brokers' own"


def test_the_page_names_every_rule():
    page = (Path(__file__).parents[2] / "docs/subscriptions.md").read_text()
    table = page.partition("## Rules")[2].partition("## Filters")[0]
    assert {name for name in FIELD_NAMES if f"`{name}`" not in table} == {"paused", "created", "revision"}
