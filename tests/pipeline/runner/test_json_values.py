"""One JSON object, in Spark's own plan, judged as Python's parser judges it."""

import json
import random
from datetime import date

import pytest
from pyspark.sql import functions as F

from clarion.pipeline.definition import RunSettings
from clarion.pipeline.json_values import is_one_object
from clarion.pipeline.ready.columns import typed_rows
from clarion.pipeline.source.data_source import message_schema
from clarion.pipeline.topic_reference import topic
from clarion.pipeline.topic_rows import messages_of, rows_of, schema_of

GOOD = [
    b'{"a":1}', b'{"a":1}\n', b'{"a":1}\r\n', b'{"a":1}\t', b' \t\r\n{"a":1} \n', b'{ }', b'{"a":{"b":[{"c":1},{}]}}',
    b'{"s":"}{"}', b'{"s":"a\\"}]"}\n', b'{"s":"\xc3\xbc\xe2\x82\xac"}', b'{"a":{"b":1}}\r',
]  # fmt: skip
BAD = [
    b'{"a":1}{"a":2}', b'{"a":1},{"a":2}', b'{"a":{"b":1}}{"a":2}', b'{"a":1} x}', b'{"a":{}}]', b'{"a":{}}]}',
    b'[{"a":1}]', b'{"a":1},"x"]{}',
    b'{"a":1}\n{"a":2}\n', b'', b'null', b'1', b'"{}"', b'{"a":1', b'{"a":1}}', b'{"s":"\xff"}',
    b'{"a":1}\x0b', b'{"a":{}},1]}',
]  # fmt: skip


def one_object(value: bytes) -> bool:
    try:
        return isinstance(json.loads(value.decode()), dict)
    except ValueError:
        return False


def judged(spark, values: list[bytes]) -> list[bool]:
    rows = spark.createDataFrame(list(enumerate(values)), "n int, value binary")
    text = F.col("value").cast("string")
    row = F.from_json(
        text, "a string, __corrupt string", {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": "__corrupt"}
    )
    is_good = row.isNotNull() & row["__corrupt"].isNull() & is_one_object(F.col("value"))
    return [each[0] for each in rows.orderBy("n").select(F.coalesce(is_good, F.lit(False))).collect()]


def test_a_value_is_one_object_or_it_is_not(spark):
    values = [*GOOD, *BAD]
    assert [one_object(each) for each in values] == [True] * len(GOOD) + [False] * len(BAD)
    assert judged(spark, values) == [True] * len(GOOD) + [False] * len(BAD)


@pytest.mark.parametrize("seed", [1, 2])
def test_pieces_of_json_in_any_order_are_judged_as_by_python(spark, seed):
    pieces = [b"{", b"}", b'{"a":1}', b'"a":', b"[", b"]", b",", b" ", b"\n", b"\t", b"\r", b'"}{"', b'{"b":{}}', b"1"]
    chosen = random.Random(seed)
    values = [b"".join(chosen.choices(pieces, k=chosen.randint(1, 6))) for _ in range(2000)]
    values += [b"".join((chosen.choice(GOOD), *chosen.choices(pieces, k=chosen.randint(0, 2)))) for _ in range(2000)]
    expected = [one_object(each) for each in values]
    assert 100 < sum(expected) < 3000
    assert judged(spark, values) == expected


def message_rows(spark, values):
    schema = message_schema(with_headers=True, with_topic_id=True)
    rows = [(None, bytearray(each), "t", 0, n, None, 0, None, "id") for n, each in enumerate(values)]
    return spark.createDataFrame(rows, schema)


def test_a_topic_drops_what_is_no_object_and_keeps_every_kind_of_white_space(spark):
    source = topic("t", json="a string", on_bad="drop", metadata=True)
    kept = rows_of(message_rows(spark, [*GOOD, *BAD]), source, RunSettings("p", "nowhere:1")).collect()
    assert sorted(each["_message"]["offset"] for each in kept) == list(range(len(GOOD)))


def test_headers_that_came_along_are_no_part_of_a_json_value(spark):
    rows = message_rows(spark, [b"x"]).selectExpr("cast(value AS string) AS value", "offset", "headers")
    (row,) = messages_of(rows, topic("out"), RunSettings("p", "")).collect()
    assert json.loads(row.value) == {"value": "x", "offset": 0}


def test_a_raw_message_is_copied_with_headers_and_time(spark):
    assert messages_of(message_rows(spark, [b"x"]), topic("out"), RunSettings("p", "")).columns == [
        "key",
        "value",
        "headers",
        "timestamp",
    ]


def test_a_typed_archive_keeps_the_bytes_of_what_is_no_object(spark):
    messages, schema = message_rows(spark, [*GOOD, *BAD]), schema_of(topic("t", json="a string"))
    rows = typed_rows(messages, schema, "none", keeps_value=False).orderBy("_offset").collect()
    assert [each._unparsed for each in rows] == [None] * len(GOOD) + [bytearray(each) for each in BAD]


def test_digits_are_no_date_in_a_topic_and_in_an_archive(spark):
    """Spark's parser falls back to days since 1970: "20261101" would be a day of the year 57443."""
    days = [b'{"day":"2026-11-01"}', b'{"day":"20261101"}', b'{"day":"1"}', b'{"day":"2026-11-01T23:00:00Z"}']
    messages = message_rows(spark, days)
    run = RunSettings("p", "nowhere:1")

    kept = rows_of(messages, topic("t", json="day date", on_bad="drop"), run).collect()
    archived = typed_rows(messages, schema_of(topic("t", json="day date")), "none", keeps_value=False)
    asked_for = topic("t", json="day date", on_bad="drop", json_options={"enableDatetimeParsingFallback": "true"})

    assert [each.day for each in kept] == [date(2026, 11, 1)] * 2
    assert [each._unparsed for each in archived.orderBy("_offset").collect()] == [
        None,
        *map(bytearray, days[1:3]),
        None,
    ]
    assert rows_of(messages, asked_for, run).count() == 4
