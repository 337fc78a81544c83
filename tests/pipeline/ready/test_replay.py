"""Archives back into topics."""

import time
from collections import defaultdict
from datetime import UTC, datetime, timedelta, timezone

import pytest
from pyspark.sql.functions import lit, timestamp_millis
from pyspark.sql.types import StringType, StructField, StructType

from clarion.pipeline import archive, replay
from clarion.pipeline.definition import BATCH, RunSettings
from clarion.pipeline.ready.columns import fields_of_archive
from clarion.pipeline.ready.replay import in_order, oldest
from tests.pipeline.ready.conftest import NOON


def by_key(found) -> dict[bytes, list[bytes]]:
    values = defaultdict(list)
    for each in found:  # of one partition in order, and a key is in one partition
        values[each.key()].append(each.value())
    return dict(values)


def test_keys_order_headers_and_times_come_back(house, unique: str) -> None:
    house.make_topic(unique)
    house.send(unique, [b"%d" % n for n in range(200)], timestamp=NOON, headers=[("h", b"x")])
    house.send(unique, [None], key=lambda n: b"key-0", partition=lambda n: 0, timestamp=NOON - 3_600_000)
    house.run(archive(unique, house.lake("events")), BATCH)
    again = replay(house.lake("events"), f"{unique}-again", partitions=3)

    house.run(again, BATCH)

    before, after = house.read(unique, 201), house.read(f"{unique}-again", 201)
    assert by_key(after) == by_key(before)
    assert sorted(each.timestamp()[1] for each in after) == sorted(each.timestamp()[1] for each in before)
    assert after[0].headers() == [("h", b"x")] or after[0].value() is None


def test_a_replay_says_before_it_starts_what_will_not_stay(
    house, unique: str, caplog: pytest.LogCaptureFixture
) -> None:
    house.make_topic(unique, 1)
    house.send(unique, [b"m"], partition=lambda n: 0, timestamp=NOON)
    house.run(archive(unique, house.lake("events")), BATCH)
    house.make_topic(f"{unique}-short", 1, retention_ms="3600000")
    again = replay(house.lake("events"), f"{unique}-short")

    again.writes[0].prepare(house.spark, RunSettings("again", house.bootstrap))

    assert f"topic {unique}-short: keeps messages for 60 minutes, and the oldest to be replayed is" in caplog.text


def test_a_range_of_time_a_pace_and_the_partitions_they_came_from(house, unique: str) -> None:
    house.make_topic(unique)
    house.send(unique, [b"%d" % n for n in range(60)], timestamp=NOON)
    house.run(archive(unique, house.lake("events")), BATCH)
    some = replay(
        house.lake("events"),
        f"{unique}-some",
        since=datetime.fromtimestamp((NOON + 20) / 1000, UTC).isoformat(),
        until=datetime.fromtimestamp((NOON + 50) / 1000, timezone(timedelta(hours=1))).isoformat(),
        rate=20,
        keep_partitions=True,
        keep_timestamps=False,
        partitions=2,
    )

    begin = time.monotonic()
    house.run(some, BATCH)

    assert time.monotonic() - begin > 1  # 30 messages, 20 a second
    found = house.read(f"{unique}-some", 30)
    assert sorted(int(each.value()) for each in found) == list(range(20, 50))
    assert all(int(each.value()) % 2 == each.partition() for each in found)
    assert all(each.timestamp()[1] > NOON + 1000 for each in found)


@pytest.mark.campaign
@pytest.mark.parametrize(
    ("keeps_value", "again"), [(True, b'{"_id": "a", "ms": 5, "more": 1}'), (False, b'{"_id":"a","ms":5}')]
)
def test_a_typed_archive_is_replayed_as_it_was_or_as_json(house, unique: str, keeps_value: bool, again: bytes) -> None:
    house.make_topic(unique, 1)
    values = [{"_id": "a", "ms": 5, "more": 1}, b"no json", None]
    house.send(unique, values, key=lambda n: b"k", partition=lambda n: 0)
    house.run(archive(unique, house.lake("typed"), json="_id string, ms long", keep_value=keeps_value), BATCH)

    house.run(replay(house.lake("typed"), f"{unique}-again", partitions=1), BATCH)

    found = [each.value() for each in house.read(f"{unique}-again", 3)]
    assert found == [again, b"no json", None]


def test_a_field_that_begins_with_an_underscore_is_the_jsons_own() -> None:
    """Of an archive without the bytes, these fields are what there is to replay."""
    names = ["_id", "ms", "_key", "_offset", "_value", "_unparsed", "_is_empty", "_date", "_timestampType"]
    schema = StructType([StructField(each, StringType()) for each in names])
    assert fields_of_archive(schema).names == ["_id", "ms"]


def test_what_is_no_archive_cannot_be_replayed(house, unique: str) -> None:
    refused = house.try_to_run(replay(house.lake("nowhere"), unique), BATCH)

    assert "there is no table at" in refused.progresses[0].last_error


def test_messages_without_a_time_make_a_topic_neither_older_nor_oldest(spark) -> None:
    """Their producer gave them none (-1): a topic that was made anew still comes after the one it replaced."""
    noon, none = datetime.fromtimestamp(NOON / 1000, UTC), datetime.fromtimestamp(-0.001, UTC)
    later = noon + timedelta(hours=1)
    rows = [("t", "a", 0, 0, noon, b"old"), ("t", "b", 0, 0, later, b"new"), ("t", "b", 0, 1, none, b"newest")]
    columns = "topic string, topic_id string, partition int, offset long, timestamp timestamp, value binary"
    df = spark.createDataFrame(rows, columns).withColumn("key", lit(b"key"))
    assert [bytes(row.value) for row in in_order(df, 1, by_partition=False).collect()] == [b"old", b"new", b"newest"]
    assert oldest(df) == noon
    assert oldest(df.where("value = 'newest'")) > later, "sent now, it is as old as now"


def test_times_after_the_year_9999_are_replayed_too(spark) -> None:
    """Microseconds that a producer sent as milliseconds: no message of the archive has a time that Python knows."""
    rows = [("t", "a", 0, n, 1_795_000_000_000_000 + n, b"%d" % n) for n in range(2)]
    df = spark.createDataFrame(rows, "topic string, topic_id string, partition int, offset long, ms long, value binary")
    df = df.select("topic", "topic_id", "partition", "offset", timestamp_millis("ms").alias("timestamp"), "value")

    in_their_order = in_order(df.withColumn("key", lit(b"key")), 1, by_partition=False).select("value").collect()

    assert [bytes(row.value) for row in in_their_order] == [b"0", b"1"]
    assert oldest(df) == datetime(9999, 12, 31, tzinfo=UTC)
