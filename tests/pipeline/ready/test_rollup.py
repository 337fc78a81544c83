"""Windows of JSON fields, to a topic and a table."""

import json

import pytest

from clarion.pipeline import rollup
from clarion.pipeline.definition import BATCH
from clarion.pipeline.lake import read_table
from tests.pipeline.ready.conftest import NOON


def test_counts_sums_and_quantiles_per_window(house, unique: str) -> None:
    house.make_topic(unique, 1)
    logs = [{"service": "web" if n % 2 else "api", "bytes": n, "ms": n / 10} for n in range(100)]
    house.send(unique, logs, partition=lambda n: 0, timestamp=NOON)
    house.send(unique, [{"service": "web", "bytes": 1, "ms": 1}], partition=lambda n: 0, timestamp=NOON + 600_000)
    per_minute = rollup(
        unique,
        every="1 minute",
        by="service",
        sum="bytes",
        quantiles={"ms": [0.5, 0.99]},
        delay="10 seconds",
        to=f"{unique}-stats",
        table_path=house.lake("stats"),
    )

    house.run(per_minute)

    closed = read_table(house.spark, house.lake("stats")).orderBy("service").collect()
    assert [(row.service, row["count"], row.bytes_sum) for row in closed] == [("api", 50, 2450.0), ("web", 50, 2500.0)]
    assert closed[0].window_start.timestamp() * 1000 == NOON
    assert abs(closed[0].ms_p50 - 4.9) < 0.3
    assert closed[0].ms_p99 > 9
    found = house.read(f"{unique}-stats", 2)
    assert {each.key(): json.loads(each.value())["count"] for each in found} == {b"api": 50, b"web": 50}


@pytest.mark.campaign
def test_a_batch_writes_the_open_windows_too_and_a_field_may_hold_the_time(house, unique: str) -> None:
    house.make_topic(unique, 1)
    house.send(unique, [{"at": f"2026-11-01T12:00:{n:02}Z"} for n in range(30)], partition=lambda n: 0)

    house.run(rollup(unique, every="20 seconds", time="at", table_path=house.lake("windows")), BATCH)

    rows = read_table(house.spark, house.lake("windows")).orderBy("window_start").collect()
    assert [row["count"] for row in rows] == [20, 10]
