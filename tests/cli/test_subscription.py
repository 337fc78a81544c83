"""`clarion subscription` against a broker with HTTP: what people type, and what they read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from clarion.cli.subscription_rules import endpoint_line, rule_rows
from clarion.testing import EmbeddedBroker, cluster, embedded
from tests.waiting import wait_for

from .conftest import Broker, Shell

_numbers = count()


@pytest.fixture(scope="module")
def http_broker() -> Iterator[EmbeddedBroker]:
    with embedded(metrics_port=0, topics=["orders"]) as broker:
        for number in range(3):
            broker.produce("orders", f"order {number}", key="k")
        yield broker


@pytest.fixture
def shell(http_broker: EmbeddedBroker) -> Shell:
    return Shell(http_broker.bootstrap)


@pytest.fixture
def name() -> str:
    return f"billing-{next(_numbers)}"


def test_from_its_making_to_its_end(shell, name):
    done = shell("subscription", "create", name, "--topic", "orders", "--retention", "14d", "--max-deliveries", "7")
    assert done.out == f"subscription {name} reads orders\n", done.err
    assert name in shell("subscription", "list").out
    described = shell("subscription", "describe", name).out
    assert described.startswith(f"{name}: queue, 0 members")
    assert "14d" in described
    rules = json.loads(shell("subscription", "describe", name, "--json").out)["subscription"]
    assert (rules["retention"], rules["max_deliveries"]) == ("14d", 7)
    peeked = shell("subscription", "peek", name, "--messages", "2").out
    assert "order 0" in peeked
    assert "order 2" not in peeked
    assert "it is a queue" in shell("consume", "orders", "--group", name).one_line_error(1)
    assert shell("subscription", "pause", name).out == f"{name} is paused\n"
    assert "paused" in shell("subscription", "list").out
    assert shell("subscription", "resume", name).out == f"{name} goes on\n"
    assert shell("subscription", "seek", name, "--to", "latest").out == f"{name} was moved\n"
    assert shell("subscription", "redrive", name).out == "0 messages sent back\n"
    assert "passed over" in shell("subscription", "purge", name, "--yes").out
    assert shell("subscription", "delete", name, "--yes").out == f"deleted {name}\n"
    assert shell("subscription", "describe", name).one_line_error(1) == f"there is no subscription or group '{name}'"


def test_its_rules_are_changed_and_what_is_not_said_stays(shell, name):
    def rules() -> dict:
        return json.loads(shell("subscription", "describe", name, "--json").out)["subscription"]

    hook = ("--push", "https://example.org/hook")
    assert shell("subscription", "create", name, "--topic", "orders", "--retention", "14d", *hook).status == 0
    changed = shell("subscription", "alter", name, "--max-deliveries", "9", "--per-key-order", "--filter", 'key == "k"')
    assert changed.out == f"altered {name}\n", changed.err
    found = rules()
    assert (found["max_deliveries"], found["per_key_order"], found["filter"]) == (9, True, 'key == "k"')
    assert (found["retention"], found["push"]["url"]) == ("14d", "https://example.org/hook")
    moved = ("--push", "https://example.org/other", "--allow-private", "--any-order", "--unset", "retention")
    assert shell("subscription", "alter", name, *moved, "--unset", "filter").status == 0
    found = rules()
    assert (found["push"]["url"], found["push"]["allow_private"]) == ("https://example.org/other", True)
    assert (found["retention"], found["filter"], found["per_key_order"]) == (None, None, False)
    assert shell("subscription", "alter", name, "--pattern", "ord.*").status == 0
    assert (rules()["topics"], rules()["pattern"]) == ([], "ord.*")
    assert shell("subscription", "alter", name, "--topic", "orders").status == 0
    assert (rules()["topics"], rules()["pattern"]) == (["orders"], None)
    refused = shell("subscription", "alter", name, "--ack-timeout", "1ms").one_line_error(2)
    assert "ack_timeout" in refused
    shell("subscription", "delete", name, "--yes")


def test_a_push_subscription_tells_its_secret_once(shell, name):
    made = shell("subscription", "create", name, "--topic", "orders", "--push", "https://example.org/hook")
    assert "signed with whsec_" in made.out
    assert "whsec_" not in shell("subscription", "describe", name).out


@pytest.mark.parametrize(
    ("words", "says", "status"),
    [
        (["create", "x"], "--topic, once or more, or --pattern", 2),
        (["create", "x", "--topic", "none"], "there is no topic 'none'; create it first", 1),
        (["create", "x", "--topic", "orders", "--retention", "long"], "write for example 90s", 2),
        (["create", "x", "--topic", "orders", "--mode", "heap"], "mode is stream or queue", 2),
        (["create", "x", "--topic", "orders", "--max-deliveries", "0"], "max_deliveries", 2),
        (
            ["create", "x", "--topic", "orders", "--mode", "stream", "--filter", "key == null"],
            "leave the filter out",
            2,
        ),
        (["create", "x", "--pattern", "("], "missing", 2),
        (["alter", "x"], "nothing to change", 2),
        (["alter", "x", "--unset", "colour"], "the rules are ack_timeout", 2),
        (["alter", "none", "--window", "7"], "there is no subscription 'none'", 1),
        (["create", "x", "--topic", "orders", "--filter", "colour == 1"], "there is no 'colour'", 2),
        (["create", "no spaces", "--topic", "orders"], "cannot be a subscription's name", 2),
        (["seek", "x"], "say where to", 2),
        (["seek", "x", "--offset", "orders"], "write TOPIC:PARTITION:OFFSET", 2),
        (["seek", "x", "--to", "soon"], "write earliest, latest, a time", 2),
        (["delete", "x"], "--yes", 2),
        (["pause", "none"], "there is no subscription 'none'", 1),
        (["create", "x", "--topic", "ordres"], "create it first (did you mean orders?)", 1),
    ],
)
def test_a_mistake_is_one_line_that_says_what_to_do(shell, words, says, status):
    assert says in shell("subscription", *words).one_line_error(status)


def test_a_broker_without_http_says_what_is_missing(tmp_path: Path):
    broker = Broker(tmp_path / "data", "--listen", "127.0.0.1:0", "--set", "clarion.http.api=off")
    try:
        complaint = Shell(broker.address)("subscription", "list").one_line_error(1)
    finally:
        broker.stop()
    assert "HTTP" in complaint


def test_a_push_to_an_address_that_is_not_public_is_allowed_by_a_word(shell, name):
    hook = ("subscription", "create", name, "--topic", "orders", "--push", "http://127.0.0.1:9/hook")
    made = json.loads(shell(*hook, "--allow-private", "--json").out)
    assert made["push"]["allow_private"] is True
    assert "--push" in shell("subscription", "create", name, "--topic", "orders", "--allow-private").one_line_error(2)


def test_describe_says_how_the_endpoint_of_a_push_subscription_is(shell, name):
    """Nobody may be sent to on this machine: the broker was not told that its own network is allowed."""
    done = shell("subscription", "create", name, "--topic", "orders", "--push", "http://127.0.0.1:9/hook")
    assert done.status == 0, done.err
    told = wait_for(
        lambda: [one for one in shell("subscription", "describe", name).out.splitlines() if "its endpoint f" in one]
    )
    assert "0 messages delivered" in told[0]
    assert "127.0.0.1 is not a public address" in told[0]
    shell("subscription", "delete", name, "--yes")


def test_a_name_that_is_nearly_right_gets_a_suggestion(shell, name):
    assert shell("subscription", "create", name, "--topic", "orders").status == 0
    for words in (["describe"], ["pause"], ["peek"], ["delete", "--yes"]):
        assert f"(did you mean {name}?)" in shell("subscription", words[0], f"{name}x", *words[1:]).one_line_error(1)


def test_rules_are_shown_as_people_write_them():
    rules = {
        "topics": ["a", "b"],
        "filter": None,
        "paused": False,
        "push": {"url": "https://x", "headers": {}, "ordered": True},
    }
    assert [(row["rule"], row["value"]) for row in rule_rows(rules)] == [
        ("topics", "a, b"),
        ("filter", "-"),
        ("paused", "no"),
        ("push.url", "https://x"),
        ("push.headers", "-"),
        ("push.ordered", "yes"),
    ]


def test_an_endpoint_in_every_state_is_told_in_words():
    found = {
        "delivered": 1,
        "failed": 2,
        "last_failure_reason": "HTTP 500",
        "stopped_because": "the endpoint says that it is gone (HTTP 410)",
    }
    lines = {state: endpoint_line({"state": state, **found}) for state in ("well", "failing", "resting", "stopped")}
    assert lines["well"] == "its endpoint is well (1 message delivered, 2 failed)"
    assert lines["failing"] == "its endpoint failed the last time (1 message delivered, 2 failed): HTTP 500"
    assert lines["resting"].endswith("left alone for a while (1 message delivered, 2 failed): HTTP 500")
    assert "HTTP 410" in lines["stopped"]


def test_in_a_cluster_every_broker_is_asked_for_what_it_leads():
    with cluster(brokers=2, topics={"orders": 2}, metrics_port=0) as brokers:
        brokers.wait_until_in_sync("orders")
        shell = Shell(",".join(brokers[number].bootstrap for number in brokers.running))
        for partition in ("0", "1"):
            assert shell("produce", "orders", "--partition", partition, stdin=b"one\ntwo\n").status == 0
        assert shell("subscription", "create", "billing", "--topic", "orders").status == 0
        peeked = json.loads(shell("subscription", "peek", "billing", "--json").out)
        assert [(one["partition"], one["offset"]) for one in peeked] == [(0, 0), (0, 1), (1, 0), (1, 1)]
        assert len(json.loads(shell("subscription", "peek", "billing", "--messages", "3", "--json").out)) == 3
        redriven = json.loads(shell("subscription", "redrive", "billing", "--json").out)
        assert redriven == {"sent": 0, "left": 0, "stopped_at": None}
