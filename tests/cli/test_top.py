"""`clarion top`: rates from two looks, lines that fit, and the command itself."""

from __future__ import annotations

import json
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from clarion.cli.broker_numbers import parse
from clarion.cli.top import GroupSample, Sample, TopicSample, rates, screen
from clarion.testing import embedded

from .conftest import Shell

BEFORE = Sample(
    10.0, {"quiet": TopicSample(1, 5, 100), "busy": TopicSample(3, 100, 1_000)}, {"g": GroupSample("stable", 2, 10)}
)
AFTER = Sample(
    12.0,
    {"quiet": TopicSample(1, 5, 100), "busy": TopicSample(3, 500, 5_000), "new": TopicSample(1, 9, None)},
    {"g": GroupSample("stable", 2, 4), "late": GroupSample("empty", 0, 700)},
)


def test_rates_are_what_came_between_two_looks():
    rows = rates(BEFORE, AFTER)
    assert [(row["topic"], row["messages_per_second"], row["bytes_per_second"]) for row in rows["topics"]] == [
        ("busy", 200.0, 2_000),
        ("new", 0.0, None),
        ("quiet", 0.0, 0),
    ]
    assert [(row["group"], row["lag"], row["lag_per_second"]) for row in rows["groups"]] == [
        ("late", 700, 0.0),
        ("g", 4, -3.0),
    ]


def test_a_topic_that_was_made_again_has_no_negative_rate():
    again = Sample(12.0, {"busy": TopicSample(3, 0, 0)}, {})
    assert rates(BEFORE, again)["topics"][0]["messages_per_second"] == 0


@given(st.integers(20, 200), st.integers(5, 60), st.integers(0, 40), st.text(min_size=1, max_size=249))
def test_it_fits_any_terminal(width, height, count, name):
    topics = {f"{name}{number}": TopicSample(10_000, 10**15, 10**15) for number in range(count)}
    groups = {f"{name}{number}": GroupSample("preparing_rebalancing", 10_000, 10**15) for number in range(count)}
    lines = screen("127.0.0.1:9092", rates(Sample(0.0, {}, {}), Sample(1.0, topics, groups)), width, height)
    assert max(map(len, lines)) <= max(width, 60)
    assert len(lines) <= max(height, 12)


def test_the_busiest_and_the_furthest_behind_are_shown_in_80_columns():
    lines = screen("here", rates(BEFORE, AFTER), 80, 24)
    assert lines[0] == "here: 3 topics, 2 groups, 200 messages/s in"
    assert lines[2].split() == ["TOPIC", "PARTITIONS", "MESSAGES/S", "BYTES/S", "SIZE"]
    assert lines[3].split() == ["busy", "3", "200", "2.0", "KB/s", "5.0", "KB"]
    assert lines[-2].split() == ["late", "empty", "0", "700", "+0"]


def test_it_looks_as_often_as_it_is_told(clarion, topic):
    clarion("produce", topic, stdin=b"x\n")
    clarion("consume", topic, "--group", f"g-{topic}")
    looked = clarion("top", "--count", "2", "--interval", "100ms", "--json")
    first, second = (json.loads(line) for line in looked.out.splitlines())
    assert topic in [row["topic"] for row in first["topics"]]
    assert f"g-{topic}" in [row["group"] for row in second["groups"]]
    assert topic in clarion("top", "-n", "1", "--interval", "100ms").out
    assert "at least 100ms" in clarion("top", "--interval", "1ms").one_line_error(2)
    assert "at least 1" in clarion("top", "--count", "0").one_line_error(2)


PAGE = """# TYPE clarion_connections gauge
clarion_connections 12
clarion_disk_free_bytes 5000000000.0
clarion_request_duration_seconds_bucket{api="Produce",le="0.005"} 90
clarion_request_duration_seconds_bucket{api="Produce",le="0.01"} 100
clarion_request_duration_seconds_bucket{api="Produce",le="+Inf"} 100
clarion_flush_duration_seconds_bucket{le="0.005"} 0
clarion_flush_duration_seconds_bucket{le="+Inf"} 0
"""


def test_the_broker_itself_is_shown_from_its_metrics_in_80_columns():
    numbers = parse(PAGE)
    rows = rates(replace(BEFORE, numbers={}), replace(AFTER, numbers=numbers))
    lines = screen("here", rows, 80, 24)
    assert lines[1] == "12 connections, 99 % of produce within 10 ms, 5.0 GB free"
    assert "broker" not in rates(BEFORE, AFTER)
    quiet = rates(replace(BEFORE, numbers=numbers), replace(AFTER, numbers=numbers))
    assert quiet["broker"]["produce_seconds_99"] is None, "nothing came between the two looks"
    slow = {**numbers, 'clarion_request_duration_seconds_bucket{api="Produce",le="+Inf"}': 200.0}
    assert rates(BEFORE, replace(AFTER, numbers=slow))["broker"]["produce_seconds_99"] is None


def test_metrics_of_a_running_broker_are_found(tmp_path):
    with embedded(topics=["t"], metrics_port=0) as broker:
        broker.produce("t", "x")
        host, port = broker._life.server.metrics_address
        shell = Shell(broker.bootstrap)
        looked = shell("top", "--count", "1", "--interval", "100ms", "--json", "--metrics", f"{host}:{port}")
        assert json.loads(looked.out)["broker"]["connections"] >= 1
        by_itself = shell("top", "--count", "1", "--interval", "100ms", "--json")
        assert json.loads(by_itself.out)["broker"]["connections"] >= 1, "the broker says where its metrics are"
        elsewhere = shell("top", "--count", "1", "--metrics", broker.bootstrap)
        assert "no metrics at" in elsewhere.one_line_error(1)
