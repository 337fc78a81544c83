"""Ready-made pipelines from a few words, without Spark and without a broker."""

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from pyspark.sql.types import DataType, LongType, StringType, StructField, StructType

from clarion.pipeline import archive, latest, replay, rollup
from clarion.pipeline.definition import DefinitionError
from clarion.pipeline.field_list import names_in
from clarion.pipeline.lake.ranges import Origin
from clarion.pipeline.ready import REGISTRY, from_words
from clarion.pipeline.ready.archive import joined, starting_offsets
from clarion.pipeline.ready.replay import pacer, warnings_about

DAY_MS = 86_400_000


def test_words_make_the_same_pipeline_as_python() -> None:
    by_words = from_words("archive", ["--topic", "events", "--table=lake/events", "--by", "hour", "--no-hold"])
    by_hand = archive("events", "lake/events", by="hour", hold=False)

    assert by_words.name == by_hand.name == "archive-events"
    assert by_words.writes == by_hand.writes
    assert not by_words.writes[0].holds
    assert by_words.description == "archives topic events in lake/events"


def test_an_archive_with_fields_keeps_the_rest_unless_told_otherwise() -> None:
    words = ["--topic", "events", "--table", "t", "--fields", "a int"]
    assert from_words("archive", words).reads[0].shape.keeps_value
    assert not from_words("archive", [*words, "--no-keep-value"]).reads[0].shape.keeps_value


def test_a_pattern_is_one_topic_argument() -> None:
    made = from_words("archive", ["--topic", "logs-.*", "--table", "t"])

    assert made.reads[0].topic.pattern == "logs-.*"
    assert from_words("archive", ["--topic", "a", "--topic", "b", "--table", "t"]).reads[0].topic.names == ("a", "b")


def test_rollup_in_words() -> None:
    measures = ["--by", "service", "--sum", "bytes", "--quantiles", "ms:0.5,0.99", "--quantiles", "bytes:0.999"]
    targets = ["--to-topic", "stats", "--table", "lake/stats"]
    made = from_words("rollup", ["--topic", "logs", "--every", "1 minute", *measures, *targets])

    assert made.reads[0].json == "`service` string, `bytes` double, `ms` double"
    assert [each.description for each in made.writes] == ["topic stats", "table lake/stats"]
    assert made.writes[0].key == "service"
    assert "ms_p50, ms_p99, bytes_p99_9" in made.description


@pytest.mark.parametrize(
    ("name", "words", "reason"),
    [
        ("archive", "--topic events", "--table is missing: the table's folder"),
        ("archive", "--topic events --table t --colour blue", "--colour is no option; it has --topic, --table"),
        ("archive", "--topic events --table t --by minute", "partitioned by date, hour, none"),
        ("archive", "--topic", "--topic needs a value"),
        ("archive", "--topic e --table t --table u", "--table is given twice"),
        ("archive", "--topic e --table t --compact-every often", "--compact-every often"),
        ("replay", "--table t --to-topic x --rate 0", "above 0"),
        ("replay", "--table t --to-topic x --rate nan", "above 0"),
        ("replay", "--table t --to-topic x --rate inf", "above 0"),
        ("replay", "--table t --to-topic x --since yesterday", "write a time like"),
        ("replay", "--table t --to-topic x --until 9999-12-31T23:59:59-01:00", "write a time like"),
        ("rollup", "--topic logs --every 1minute", "needs a topic"),
        ("rollup", "--topic logs --every 1minute --quantiles ms --table t", "write FIELD:RANK,RANK"),
        ("rollup", "--topic logs --every 1minute --quantiles ms:2 --table t", "between 0 and 1"),
        ("rollup", "--topic logs --every 1minute --by count --table t", "is the name of a column of the result"),
        ("rollup", "--topic logs --every 5m --table t", "every: '5m' is no length of time"),
        ("rollup", "--topic logs --every 1minute --delay soon --table t", "delay: 'soon' is no length of time"),
        ("rollup", "--topic logs --every 1minute --time ts --by ts --table t", "time='ts' is the event's time"),
        ("rollup", "--topic logs --every 1minute --by a --by a --table t", "a would be a column of the result twice"),
        ("rollup", "--topic logs --every 1minute --sum a --sum a --table t", "a_sum would be a column"),
        ("rollup", "--topic logs --every 1minute --quantiles a:0.5,0.50 --table t", "a_p50 would be a column"),
        ("rollup", "--topic logs --every 1minute --by A --sum a --table t", "A and a differ by case alone"),
        ("rollup", "--topic logs --every 1minute --by Window --table t", "is the name of a column of the result"),
        ("archive", "--topic e --table t --trigger often", "trigger: 'often' is no length of time"),
        ("latest", "events --table t", "events is no option"),
    ],
)
def test_wrong_words_are_refused_in_one_line(name: str, words: str, reason: str) -> None:
    with pytest.raises(DefinitionError, match=reason):
        from_words(name, [each.replace("1minute", "1 minute") for each in words.split()])


@pytest.mark.parametrize("make", [archive, latest])
@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ("`a b` int, a_b int", "a b and a_b would be the same column"),
        ("a int, A string", "a and A would be the same column"),
        ("a int, _offset bigint", "_offset has the name of a column that says where"),
        ("_timestamptype int", "_timestamptype has the name of a column that says where"),
        ("`.Offset` bigint", ".Offset has the name of a column that says where"),
    ],
)
def test_fields_that_a_table_cannot_keep_apart_are_refused(make, fields: str, reason: str) -> None:
    with pytest.raises(DefinitionError, match=reason):
        make("events", "t", json=fields)


def test_names_of_fields_are_those_that_spark_would_find() -> None:
    assert names_in("a int, `b ``c` struct<x: int, y: string>, d: map<string, int> not null") == ["a", "b `c", "d"]


def test_each_option_belongs_to_its_function() -> None:
    import inspect

    for ready in REGISTRY.values():
        function = {"archive": archive, "latest": latest, "replay": replay, "rollup": rollup}[ready.name]
        known = inspect.signature(function).parameters
        assert {each.parameter for each in ready.options} <= set(known)
    assert REGISTRY["replay"].is_batch


def test_an_archive_without_checkpoint_begins_where_its_table_ends() -> None:
    layout = {"events": ("id-2", 3), "logs": ("id-3", 1)}
    held = {Origin("events", "id-2", 0): 120, Origin("events", "id-2", 2): 7}

    assert starting_offsets(held, layout) == {"events": {"0": 120, "1": -2, "2": 7}, "logs": {"0": -2}}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"retention.ms": str(7 * DAY_MS)},
            ["keeps messages for 7 days, and the oldest to be replayed is 30 days old"],
        ),
        ({"retention.ms": "-1"}, []),
        ({"retention.ms": str(60 * DAY_MS)}, []),
        ({"retention.ms": "1000", "cleanup.policy": "compact"}, []),
        ({"message.timestamp.before.max.ms": str(DAY_MS)}, ["refuses messages older than 24 hours"]),
    ],
)
def test_a_replay_says_what_will_not_stay(settings: dict[str, str], words: list[str]) -> None:
    now = datetime(2026, 11, 15, tzinfo=UTC)

    found = warnings_about(settings, now - timedelta(days=30), now)

    assert len(found) == len(words)
    assert all(each in warning for each, warning in zip(words, found, strict=True))


def test_a_replay_of_nothing_says_so() -> None:
    assert warnings_about({}, None, datetime.now(UTC)) == ["the table has no message to replay"]


def test_a_pace_lets_no_more_through_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    from clarion.pipeline.ready import replay as module

    now = [0.0]

    class Time:
        @staticmethod
        def monotonic() -> float:
            return now[0]

        @staticmethod
        def sleep(seconds: float) -> None:
            now[0] += seconds

    monkeypatch.setattr(module, "time", Time)
    rows = pa.record_batch({"n": list(range(250))})
    seen = [(now[0], piece.num_rows) for piece in pacer(100)(iter([rows, rows]))]

    assert sum(count for _, count in seen) == 500
    sent = 0
    for moment, count in seen:
        assert sent <= moment * 100 + 1
        assert count <= 10
        sent += count
    assert now[0] == pytest.approx(4.9)


@pytest.mark.parametrize(
    ("known", "seen", "fields"),
    [
        ([], ["user.id", "n"], ["user.id", "n"]),
        (["user_id", "n"], ["user.id", "n", "new"], ["user.id", "n", "new"]),
        (["user_id"], ["user.id", "user_id"], ["user_id"]),
        ([], ["a b", "N", "a_b", "n"], ["N", "a_b"]),
        (["user_id"], [], ["user_id"]),
    ],
)
def test_an_inferred_archive_keeps_its_columns_over_a_restart(known: list[str], seen: list[str], fields: list[str]):
    """A table's column has no dots and no spaces: it must not stand there twice the next time, nor be read as null."""
    found = joined(types(known, LongType()), types(seen, StringType()))

    assert found.names == fields
    assert [each.dataType for each in found][: len(known)] == [LongType()] * len(known)


def types(names: list[str], kind: DataType) -> StructType:
    return StructType([StructField(each, kind) for each in names])


def test_ranks_of_a_field_that_is_named_twice_are_all_meant() -> None:
    words = [
        "--topic",
        "logs",
        "--every",
        "1 minute",
        "--table",
        "t",
        "--quantiles",
        "ms:0.5",
        "--quantiles",
        "ms:0.99",
    ]

    assert "ms_p50, ms_p99 " in from_words("rollup", words).description
