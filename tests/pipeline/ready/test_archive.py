"""Topics into tables: every message once, whatever happens to the query."""

import json
import shutil
import threading
from collections import Counter
from datetime import UTC, date, datetime

import pyarrow as pa
import pytest
from pyspark.sql import functions as F

from clarion.pipeline import archive, latest
from clarion.pipeline.broker_link import HOLD_GROUPS, BrokerLink
from clarion.pipeline.definition import BATCH, ONCE, Plan
from clarion.pipeline.lake import compact, delta, read_table
from clarion.pipeline.runner import Runner
from tests.pipeline.ready.conftest import DAY_MS, NOON
from tests.waiting import wait_for


def day(milliseconds: int) -> date:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).date()


def offsets_in(house, path: str) -> dict[int, list[int]]:
    rows = read_table(house.spark, path).select("partition", "offset").collect()
    return {p: sorted(row.offset for row in rows if row.partition == p) for p in {row.partition for row in rows}}


def test_every_message_is_in_the_table_once_as_it_was(house, unique: str) -> None:
    house.make_topic(unique)
    house.send(unique, [f"m{n}".encode() for n in range(99)], timestamp=NOON, headers=[("h", b"1"), ("none", None)])
    house.send(unique, [None], timestamp=NOON - DAY_MS, key=lambda n: None)
    events = archive(unique, house.lake("events"))

    house.run(events)
    house.send(unique, [b"later"], timestamp=NOON)
    house.run(events)

    table = read_table(house.spark, house.lake("events"))
    assert offsets_in(house, house.lake("events")) == {0: list(range(52)), 1: list(range(49))}
    row = table.where("partition = 1 and offset = 3").first()
    assert (bytes(row.key), bytes(row.value), row.topic, row.timestampType) == (b"key-7", b"m7", unique, 0)
    assert [(each.key, each.value) for each in row.headers] == [("h", bytearray(b"1")), ("none", None)]
    days = table.groupBy("date").count().collect()
    assert {each.date: each["count"] for each in days} == {day(NOON): 100, day(NOON - DAY_MS): 1}
    assert table.where("value is null and key is null").count() == 1


def test_a_message_of_a_year_that_no_folder_can_name_is_archived_with_the_others(house, unique: str) -> None:
    house.make_topic(unique, **{"message.timestamp.after.max.ms": str(2**63 - 1)})
    house.send(unique, [b"now", b"now"], timestamp=NOON)
    house.send(unique, [b"then"], timestamp=400_000_000_000_000)  # in the year 14645
    house.run(archive(unique, house.lake("events")))

    table = read_table(house.spark, house.lake("events"))
    assert {row.offset: row.date for row in table.where("value = 'then'").select("offset", "date").collect()} == {
        1: date(9999, 12, 31)
    }
    assert table.count() == 3


@pytest.mark.parametrize("how", [ONCE, BATCH])
def test_the_archive_shows_its_lag_and_holds_deletion_back(house, unique: str, how: str) -> None:
    from confluent_kafka import Consumer, TopicPartition

    house.make_topic(unique)
    house.send(unique, [b"m"] * 10)
    events = archive(unique, house.lake("events"))
    house.run(events, how)

    group = f"clarion-pipeline-{events.name}"
    link = BrokerLink({"bootstrap.servers": house.bootstrap})
    assert link.settings(unique)[HOLD_GROUPS] == group
    reader = Consumer({"bootstrap.servers": house.bootstrap, "group.id": group})
    committed = reader.committed([TopicPartition(unique, 0), TopicPartition(unique, 1)], timeout=10)
    reader.close()
    assert [each.offset for each in committed] == [5, 5]

    if how == BATCH:
        house.run(archive(unique, house.lake("events"), hold=False), how)
        assert link.settings(unique)[HOLD_GROUPS] == ""


def test_a_lost_checkpoint_and_a_lost_commit_double_nothing(house, unique: str) -> None:
    house.make_topic(unique)
    house.send(unique, [b"m"] * 20)
    events = archive(unique, house.lake("events"))
    house.run(events)

    commits = house.checkpoint(events) / "commits"
    max(commits.glob("[0-9]*"), key=lambda each: int(each.name)).unlink()  # killed between the two commits
    house.send(unique, [b"m"] * 20)
    house.run(events)
    assert offsets_in(house, house.lake("events")) == {0: list(range(20)), 1: list(range(20))}

    shutil.rmtree(house.state)
    house.send(unique, [b"m"] * 20)
    house.run(events)
    assert offsets_in(house, house.lake("events")) == {0: list(range(30)), 1: list(range(30))}

    house.send(unique, [b"m"] * 2)
    house.run(events, BATCH)
    assert offsets_in(house, house.lake("events")) == {0: list(range(31)), 1: list(range(31))}


def test_a_topic_made_anew_is_archived_beside_the_old_one(house, unique: str) -> None:
    house.make_topic(unique)
    house.send(unique, [b"old"] * 6)
    events = archive(unique, house.lake("events"))
    house.run(events)
    house.delete_topic(unique)
    house.make_topic(unique)
    house.send(unique, [b"new"] * 4)

    failed = house.try_to_run(events)
    assert failed.progresses[0].state == "failed"  # the checkpoint is of a topic that is gone: nobody is told nothing
    shutil.rmtree(house.state)
    house.run(events)

    counts = read_table(house.spark, house.lake("events")).groupBy(F.col("value").cast("string"), "topic_id").count()
    assert sorted((row[0], row["count"]) for row in counts.collect()) == [("new", 4), ("old", 6)]


@pytest.mark.parametrize("kind", [archive, latest])
def test_a_topic_made_anew_while_its_table_is_kept_is_taken_for_what_it_is(house, unique: str, kind) -> None:
    """What the runner builds once, at its start, must not know the topic's id: the rows know it."""
    house.make_topic(unique)
    house.send(unique, [b"old"] * 10)
    made = kind(unique, house.lake("events"), options={"failOnDataLoss": "false", "kafka.metadata.max.age.ms": "100"})
    runner = Runner([made], Plan(house.bootstrap, state_dir=house.state), lambda progresses: None)
    player = threading.Thread(target=runner.run, args=(lambda config: house.spark,))
    player.start()
    try:
        wait_for(lambda: rows_in(house) == {"old": 10}, seconds=90, what="the old topic's rows")
        house.delete_topic(unique)
        house.make_topic(unique)
        house.send(unique, [b"new"] * 6)
        expected = {"old": 10, "new": 6} if kind is archive else {"old": 4, "new": 6}
        wait_for(lambda: rows_in(house) == expected, seconds=90, what="the new topic's rows")
    finally:
        runner.stop()
        player.join(60)
    assert runner.progresses[0].state == "stopped", runner.progresses[0].last_error


def rows_in(house) -> dict[str, int]:
    path = house.lake("events")
    if not delta.exists(path):
        return {}
    values = pa.table(delta.open_table(path).to_pyarrow_table())["value"].to_pylist()
    return dict(Counter(each.decode() for each in values))


def test_json_becomes_columns_and_what_is_no_json_is_kept(house, unique: str) -> None:
    house.make_topic(unique, 1)
    good = [{"user": "ann", "ms": 5}, {"user": "bob", "ms": 7, "more": [1, 2]}]
    house.send(unique, [*good, b"{broken", None], partition=lambda n: 0, timestamp=NOON)
    clicks = archive(unique, house.lake("clicks"), json="user string, ms long", by="hour", name=f"{unique}-declared")
    guessed = archive(unique, house.lake("guessed"), json="infer", name=f"{unique}-inferred")

    house.run(clicks)
    house.run(guessed)

    rows = read_table(house.spark, house.lake("clicks")).orderBy("_offset").collect()
    assert [(row.user, row.ms) for row in rows] == [("ann", 5), ("bob", 7), (None, None), (None, None)]
    assert [row._unparsed and bytes(row._unparsed) for row in rows] == [None, None, b"{broken", None]
    assert [row._is_empty for row in rows] == [False, False, False, True]
    assert (rows[0]._date, rows[0]._hour) == (day(NOON), 12)
    assert bytes(rows[1]._value) == json.dumps(good[1]).encode(), "with the field that was not declared"
    rows = read_table(house.spark, house.lake("guessed")).orderBy("_offset").collect()
    assert [row.more for row in rows] == [None, [1, 2], None, None]
    assert bytes(rows[0]._value) == b'{"user": "ann", "ms": 5}'

    house.send(unique, [{"user": "eve", "fresh": True}], partition=lambda n: 0, timestamp=NOON)
    house.run(guessed)
    assert read_table(house.spark, house.lake("guessed")).where("fresh").first().user == "eve"


@pytest.mark.campaign
def test_several_topics_in_one_table(house, unique: str) -> None:
    names = [f"{unique}-a", f"{unique}-b"]
    for each in names:
        house.make_topic(each, 1)
        house.send(each, [b"m"] * 5, partition=lambda n: 0)
    both = archive(names, house.lake("both"), by="none", name=unique)

    house.run(both)
    shutil.rmtree(house.state)
    house.run(both)

    counts = read_table(house.spark, house.lake("both")).groupBy("topic").count().collect()
    assert {row.topic: row["count"] for row in counts} == dict.fromkeys(names, 5)


@pytest.mark.campaign
def test_a_table_that_another_query_wrote_meanwhile_is_not_doubled(house, unique: str) -> None:
    """Two archives of one topic in one table: the second finds its messages there, and says so if it cannot go on."""
    house.make_topic(unique)
    house.send(unique, [b"m"] * 10)
    one, two = (archive(unique, house.lake("events"), name=f"{unique}-{each}") for each in ("one", "two"))
    house.run(one)
    house.run(two)
    house.send(unique, [b"m"] * 10)
    house.run(one)

    refused = house.try_to_run(two)

    assert refused.progresses[0].state in ("ended", "failed")
    assert offsets_in(house, house.lake("events")) == {0: list(range(10)), 1: list(range(10))}
    compact(house.lake("events"), files_min=2)
    assert offsets_in(house, house.lake("events")) == {0: list(range(10)), 1: list(range(10))}


@pytest.mark.parametrize("by", ["minute", ""])
def test_an_unknown_partitioning_is_refused(by: str) -> None:
    with pytest.raises(Exception, match="partitioned by date, hour, none"):
        archive("events", "lake/events", by=by)
