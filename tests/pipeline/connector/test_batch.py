"""Topics read and written as batches, through Spark."""

import datetime as dt
import json

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from pyspark.errors import PySparkException

from clarion.model import ids
from clarion.pipeline.connector_options import connection_settings
from clarion.pipeline.kafka.encode import messages
from clarion.pipeline.kafka.producer import ProducerSettings
from clarion.pipeline.shipping import make_known
from clarion.pipeline.sink.rows import stage
from clarion.pipeline.source.options import source_settings
from clarion.pipeline.source.planning import ROWS_PER_TASK_MIN
from clarion.pipeline.source.reader import BatchReader
from clarion.pipeline.spark_session import cores_here
from clarion.pipeline.workers import CORES_VARIABLE, kept_producer
from tests.pipeline.connector.frames import batch, save, values
from tests.pipeline.topics import contents, create, fill, numbered

pytestmark = pytest.mark.timeout(240)


def test_a_topic_has_the_columns_of_sparks_kafka_connector(spark, bootstrap, unique):
    create(bootstrap, unique, retention_ms="-1")
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce(unique, b"v", key=b"k", headers=[("h", b"1"), ("h", None)], timestamp=1_700_000_000_123)
    producer.produce(unique, None, key=None, timestamp=1_700_000_000_124)
    producer.flush(30)
    frame = batch(spark, bootstrap, subscribe=unique, includeHeaders="true")
    assert frame.columns == ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers"]
    first, second = frame.orderBy("offset").collect()
    assert (bytes(first.key), bytes(first.value), first.topic, first.partition, first.offset) == (
        b"k",
        b"v",
        unique,
        0,
        0,
    )
    when = dt.datetime.fromtimestamp(1_700_000_000.123, dt.UTC)
    assert first.timestamp.astimezone(dt.UTC) == when
    assert first.timestampType == 0
    assert [(one.key, one.value) for one in first.headers] == [("h", b"1"), ("h", None)]
    assert (second.key, second.value, second.headers) == (None, None, None)


def test_ranges_are_chosen_by_offset_and_by_time(spark, bootstrap, unique):
    create(bootstrap, unique, 2, retention_ms="-1")
    producer = Producer({"bootstrap.servers": bootstrap})
    for nth, value in enumerate(numbered(100)):
        producer.produce(unique, value, partition=nth % 2, timestamp=1_700_000_000_000 + nth)
    producer.flush(30)
    evens = numbered(100)[::2]
    ranges = json.dumps({unique: {"0": 10, "1": -2}}), json.dumps({unique: {"0": 20, "1": 0}})
    frame = batch(spark, bootstrap, subscribe=unique, startingOffsets=ranges[0], endingOffsets=ranges[1])
    assert values(frame) == evens[10:20]
    times = {"startingTimestamp": 1_700_000_000_040, "endingTimestamp": 1_700_000_000_060}
    assert sorted(values(batch(spark, bootstrap, subscribe=unique, **times))) == numbered(100)[40:60]
    assigned = batch(spark, bootstrap, assign=json.dumps({unique: [0]}))
    assert values(assigned) == evens


def test_topics_are_found_by_pattern_and_many_tasks_share_them(spark, bootstrap, unique):
    for nth in range(3):
        create(bootstrap, f"{unique}.{nth}", 2)
        fill(bootstrap, f"{unique}.{nth}", numbered(100), 0)
    frame = batch(spark, bootstrap, subscribePattern=unique.replace("-", ".") + r"\.[01]", minPartitions="5")
    counts = {row.topic: row["count"] for row in frame.groupBy("topic").count().collect()}
    assert counts == {f"{unique}.0": 100, f"{unique}.1": 100}
    assert frame.rdd.getNumPartitions() == 5


def test_an_end_beyond_the_log_is_told_at_once_or_cut_back(spark, bootstrap, unique):
    create(bootstrap, unique)
    fill(bootstrap, unique, numbered(10))
    end = json.dumps({unique: {"0": 100}})
    with pytest.raises(PySparkException, match="-0 ends at 10, before the wanted end 100"):
        batch(spark, bootstrap, subscribe=unique, endingOffsets=end).count()
    assert batch(spark, bootstrap, subscribe=unique, endingOffsets=end, failOnDataLoss="false").count() == 10


def test_an_empty_topic_has_no_rows(spark, bootstrap, unique):
    create(bootstrap, unique)
    assert batch(spark, bootstrap, subscribe=unique).count() == 0


def test_a_view_in_sql_reads_a_topic(spark, bootstrap, unique):
    create(bootstrap, unique)
    fill(bootstrap, unique, numbered(20))
    options = f"`bootstrap.servers` '{bootstrap}', subscribe '{unique}'"
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW a_topic USING clarion OPTIONS ({options})")
    (row,) = spark.sql("SELECT count(*) AS n, max(offset) AS last, max(cast(value AS string)) v FROM a_topic").collect()
    assert (row.n, row["last"], row.v.encode()) == (20, 19, numbered(20)[-1])


def test_what_is_wrong_is_said_at_load(spark, bootstrap, unique):
    with pytest.raises(PySparkException, match=r"unknown option subscripe; did you mean subscribe\?"):
        batch(spark, bootstrap, subscripe="t")
    with pytest.raises(PySparkException, match=r"option bootstrap\.servers is missing"):
        spark.read.format("clarion").option("subscribe", "t").load()
    with pytest.raises(PySparkException, match=f"topic {unique} does not exist at {bootstrap}"):
        batch(spark, bootstrap, subscribe=unique).count()
    with pytest.raises(PySparkException, match="the columns of a topic are fixed"):
        spark.read.format("clarion").options(**{"bootstrap.servers": bootstrap, "subscribe": unique}).schema(
            "value string"
        ).load().count()


# ------------------------------------------------------------------------------------------------ writing


def read_all(bootstrap: str, topic: str, partition: int = 0) -> list:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "read-all"})
    _, last = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=15)
    consumer.assign([TopicPartition(topic, partition, 0)])
    got = consumer.consume(last, timeout=20) if last else []
    consumer.close()
    return got


def test_rows_become_messages_with_key_headers_and_time(spark, bootstrap, unique):
    create(bootstrap, unique, 3, retention_ms="-1")
    frame = spark.sql(
        "SELECT 'k' AS key, cast('v' AS binary) AS value, 2 AS partition, "
        "timestamp_millis(1700000000123) AS timestamp, "
        "array(named_struct('key', 'h', 'value', cast('1' AS binary))) AS headers"
    )
    save(frame, bootstrap, topic=unique, **{"kafka.compression.type": "zstd"})
    (message,) = read_all(bootstrap, unique, 2)
    assert (message.key(), message.value(), message.headers()) == (b"k", b"v", [("h", b"1")])
    assert message.timestamp() == (1, 1_700_000_000_123)


def test_keys_choose_their_partitions_and_topics_may_be_a_column(spark, bootstrap, unique):
    create(bootstrap, f"{unique}.0", 3)
    create(bootstrap, f"{unique}.1", 5)
    # In one task: where several write a key's rows, nobody says which of them is first.
    frame = spark.range(0, 2000, numPartitions=1).selectExpr(
        "cast(id % 50 AS string) AS key", "cast(id AS string) AS value", f"concat('{unique}.', id % 2) AS topic"
    )
    save(frame, bootstrap)
    theirs: dict[tuple[str, bytes], int] = {}
    producer = Producer({"bootstrap.servers": bootstrap, "partitioner": "murmur2"})
    for nth in range(50):
        producer.produce(
            f"{unique}.{nth % 2}",
            b"x",
            key=b"%d" % nth,
            on_delivery=lambda _, one: theirs.update({(one.topic(), one.key()): one.partition()}),
        )
    producer.flush(30)
    for nth, partitions in ((0, 3), (1, 5)):
        topic = f"{unique}.{nth}"
        got = [one for partition in range(partitions) for one in read_all(bootstrap, topic, partition)]
        ours = [one for one in got if one.value() != b"x"]
        assert len(ours) == 1000
        assert all(theirs[topic, one.key()] == one.partition() for one in ours)
        for key in {one.key() for one in ours}:  # the order of a key is the order of its rows
            numbers = [int(one.value()) for one in ours if one.key() == key]
            assert numbers == sorted(numbers)


def test_many_rows_without_keys_are_all_there(spark, bootstrap, unique):
    create(bootstrap, unique, 4)
    save(spark.range(50_000).selectExpr("cast(id AS string) AS value"), bootstrap, topic=unique)
    frame = batch(spark, bootstrap, subscribe=unique)
    (row,) = frame.selectExpr("count(*) n", "count(distinct value) d", "count(distinct partition) p").collect()
    assert (row.n, row.d) == (50_000, 50_000)
    assert row.p >= 2


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ("'k' AS key", "a message needs a column `value`"),
        ("1 AS value", "column `value` is int; it must be string or binary"),
        ("'v' AS value, 'x' AS user", "column `user` has no place in a message"),
        ("'v' AS value, 1L AS partition", "column `partition` is bigint; it must be int"),
        ("'v' AS value, array('h') AS headers", "column `headers` is array<string>"),
    ],
)
def test_columns_that_make_no_message_are_refused(spark, bootstrap, unique, columns, words):
    with pytest.raises(PySparkException, match=words):
        save(spark.sql(f"SELECT {columns}"), bootstrap, topic=unique)


def test_a_message_with_neither_key_nor_value_is_copied_as_it_is(bootstrap, unique):
    """Kafka takes it from any producer, so a copy must not stop there."""
    create(bootstrap, unique)
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce(unique, None, headers=[("h", b"1")])
    assert producer.flush(30) == 0
    where = {"bootstrap.servers": bootstrap}
    reader = BatchReader(source_settings({**where, "subscribe": unique, "includeHeaders": "true"}))
    rows = [batch for task in reader.partitions() for batch in reader.read(task)]
    staged = stage(rows, first_row=0, now_ms=0, message_bytes_max=1000)
    with kept_producer(connection_settings(where), ProducerSettings()) as writer:
        writer.write(staged.messages, [(ids.TopicPartition(unique, 0), 0)], np.arange(1))
    assert contents(bootstrap, unique) == [None, None]


def test_a_message_without_a_time_is_copied_without_one(bootstrap, unique):
    """Its producer gave it none (-1), and brokers take it: it must not stop a copy, nor a replay of its archive."""
    create(bootstrap, unique)
    where = {"bootstrap.servers": bootstrap}
    reader = BatchReader(source_settings({**where, "subscribe": unique}))
    value, place = pa.array([b"a", b"b"], pa.binary()), [(ids.TopicPartition(unique, 0), 0)]
    with kept_producer(connection_settings(where), ProducerSettings()) as writer:
        writer.write(messages(pa.nulls(2, pa.binary()), value, np.array([5, -1])), place, np.arange(2))
    rows = [batch for task in reader.partitions() for batch in reader.read(task)]
    assert stage(rows, first_row=0, now_ms=7, message_bytes_max=1000).messages.timestamp_ms.tolist() == [5, -1]


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ("'k' AS key, if(id = 3, 9, 0) AS partition", "row 3 names partition 9 of .*, which has 1"),
        ("if(id = 2, repeat('x', 2000000), 'v') AS value", "row 2 is larger than a request may be"),
        ("if(id = 1, timestamp_millis(-5), now()) AS timestamp", "row 1 has a timestamp before 1970"),
        (
            "array(named_struct('key', if(id = 3, NULL, 'h'), 'value', cast('1' AS binary))) AS headers",
            "row 3 has a header",
        ),
        ("if(id = 1, NULL, 'somewhere') AS topic", "row 1 names no topic"),
    ],
)
def test_a_row_that_makes_no_message_is_refused_by_its_position(spark, bootstrap, unique, columns, words):
    create(bootstrap, unique)
    if "AS value" not in columns:
        columns += ", 'v' AS value"
    options = {} if "AS topic" in columns else {"topic": unique}
    with pytest.raises(PySparkException, match=words) as caught:
        save(spark.range(0, 10, 1, 1).selectExpr(*_split(columns)), bootstrap, **options)
    assert "rows are counted from 0 within Spark's partition 0" in str(caught.value)


def _split(columns: str) -> list[str]:
    """At the commas that are not inside parentheses."""
    parts, depth = [""], 0
    for character in columns:
        depth += {"(": 1, ")": -1}.get(character, 0)
        if character == "," and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return parts


def test_a_topic_cannot_be_overwritten(spark, bootstrap, unique):
    frame = spark.sql("SELECT 'v' AS value")
    with pytest.raises(PySparkException, match="cannot be overwritten"):
        frame.write.format("clarion").options(**{"bootstrap.servers": bootstrap, "topic": unique}).mode(
            "overwrite"
        ).save()


def test_a_topic_is_copied_with_all_its_columns(spark, bootstrap, unique):
    create(bootstrap, unique, 2)
    create(bootstrap, f"{unique}.copy", 2)
    fill(bootstrap, unique, numbered(100), 1)
    save(batch(spark, bootstrap, subscribe=unique), bootstrap, topic=f"{unique}.copy")
    assert [one.value() for one in read_all(bootstrap, f"{unique}.copy", 1)] == numbered(100)


def test_the_number_of_tasks_follows_the_cores_that_spark_has_and_not_those_of_this_machine(
    spark, bootstrap, unique, monkeypatch
):
    create(bootstrap, unique)
    fill(bootstrap, unique, [b""] * 4 * ROWS_PER_TASK_MIN, **{"queue.buffering.max.messages": 1_000_000})
    few = cores_here() + 1
    monkeypatch.setenv(CORES_VARIABLE, str(few))
    make_known(spark)
    try:
        assert batch(spark, bootstrap, subscribe=unique, splitPartitions="true").rdd.getNumPartitions() == few
    finally:
        monkeypatch.delenv(CORES_VARIABLE)
        make_known(spark)
    assert spark.sparkContext.environment[CORES_VARIABLE] == "2", "as local[2,4] says"
