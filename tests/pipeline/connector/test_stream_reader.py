"""The streaming reader with a real broker, asked in the order in which Spark asks: without Spark, so in no time."""

import json
import time

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

from clarion.model.ids import TopicPartition
from clarion.pipeline.connector_options import OptionError
from clarion.pipeline.kafka.client import Client
from clarion.pipeline.kafka.offsets import fetch_committed
from clarion.pipeline.source.options import source_settings
from clarion.pipeline.source.positions import MissingTopicError
from tests.pipeline.connector.stream_readers import add_partition, latest, offsets, read
from tests.pipeline.topics import create, delete, fill, numbered
from tests.waiting import wait_for

# ------------------------------------------------------------------------------------------------ reading on


def test_a_stream_reads_what_is_written_after_it_began(readers, bootstrap, unique):
    create(bootstrap, unique, 2)
    fill(bootstrap, unique, [b"before"])
    reader = readers(unique)
    start = reader.initialOffset()
    assert offsets(start, unique) == {"0": 1, "1": 0}
    fill(bootstrap, unique, numbered(10), 1)
    end = latest(reader, start)
    assert offsets(end, unique) == {"0": 1, "1": 10}
    assert read(reader, start, end) == numbered(10)
    assert offsets(reader.reportLatestOffset(), unique) == offsets(end, unique)


def test_an_idle_stream_waits_and_then_answers_what_it_was_asked(readers, bootstrap, unique):
    create(bootstrap, unique)
    reader = readers(unique, startingOffsets="earliest")
    start = reader.initialOffset()
    latest(reader, start)
    began = time.monotonic()
    assert latest(reader, start) == start
    assert time.monotonic() - began > 0.4


def test_a_short_wait_leaves_the_question_with_the_broker(readers, bootstrap, unique):
    """So that a second source without news costs a batch of the first nothing, and hears of its own at once."""
    create(bootstrap, unique)
    reader = readers(unique, startingOffsets="earliest", longPollMs="1")
    start = reader.initialOffset()
    waits = []
    for _ in range(20):
        began = time.monotonic()
        assert latest(reader, start) == start
        waits.append(time.monotonic() - began)
    assert sorted(waits)[10] < 0.3, "the broker holds a question for half a second"
    fill(bootstrap, unique, numbered(3))
    end = wait_for(lambda: found if (found := latest(reader, start)) != start else None, seconds=60)
    assert read(reader, start, end) == numbered(3)


def test_news_end_the_wait(readers, bootstrap, unique):
    create(bootstrap, unique, 20)
    reader = readers(unique, longPollMs="20000")
    start = reader.initialOffset()
    fill(bootstrap, unique, [b"x"], 13)
    began = time.monotonic()
    assert offsets(latest(reader, start), unique)["13"] == 1
    assert time.monotonic() - began < 15


def test_the_start_is_the_same_however_often_it_is_asked(readers, bootstrap, unique):
    create(bootstrap, unique)
    reader = readers(unique)
    start = reader.initialOffset()
    fill(bootstrap, unique, [b"x"])
    assert reader.initialOffset() == start


def test_limits_on_rows_hold_unless_spark_wants_everything(readers, bootstrap, unique):
    create(bootstrap, unique, 2)
    for partition in range(2):
        fill(bootstrap, unique, numbered(100), partition)
    reader = readers(unique, startingOffsets="earliest", maxOffsetsPerTrigger="30")
    start = reader.initialOffset()
    assert reader.getDefaultReadLimit() == ReadMaxRows(30)
    assert offsets(latest(reader, start), unique) == {"0": 15, "1": 15}
    assert offsets(latest(reader, start, ReadAllAvailable()), unique) == {"0": 100, "1": 100}


def test_limits_on_bytes_are_estimated_from_the_messages(readers, bootstrap, unique):
    create(bootstrap, unique)
    fill(bootstrap, unique, numbered(1000, size=992))
    reader = readers(unique, startingOffsets="earliest", maxBytesPerTrigger="100000")
    assert reader.getDefaultReadLimit() == ReadMaxBytes(100_000)
    end = latest(reader, reader.initialOffset())
    assert 80 <= offsets(end, unique)["0"] <= 100


def test_too_few_messages_wait_for_more_or_for_the_delay(readers, bootstrap, unique):
    create(bootstrap, unique)
    fill(bootstrap, unique, numbered(5))
    reader = readers(unique, startingOffsets="earliest", minOffsetsPerTrigger="10", maxTriggerDelay="1h")
    start = reader.initialOffset()
    assert latest(reader, start) == start
    fill(bootstrap, unique, numbered(5))
    assert offsets(latest(reader, start), unique) == {"0": 10}
    impatient = readers(unique, startingOffsets="earliest", minOffsetsPerTrigger="100", maxTriggerDelay="0")
    assert offsets(latest(impatient, start), unique) == {"0": 10}


def test_available_now_goes_to_what_was_there_and_no_further(readers, bootstrap, unique):
    create(bootstrap, unique, 2)
    fill(bootstrap, unique, numbered(50))
    reader = readers(unique, startingOffsets="earliest", maxOffsetsPerTrigger="20")
    reader.prepareForTriggerAvailableNow()
    fill(bootstrap, unique, [b"late"] * 10)
    start, got = reader.initialOffset(), []
    while (end := latest(reader, start)) != start:
        got += read(reader, start, end)
        start = end
    assert got == numbered(50)


def test_a_new_partition_is_read_from_its_beginning(readers, bootstrap, unique):
    create(bootstrap, unique)
    reader = readers(unique, **{"kafka.metadata.max.age.ms": "1"})
    start = reader.initialOffset()
    add_partition(bootstrap, unique)
    fill(bootstrap, unique, numbered(5), 1)
    end = wait_for(lambda: found if "1" in (found := latest(reader, start))[unique] else None, seconds=10)
    assert offsets(end, unique) == {"0": 0, "1": 5}
    assert read(reader, start, end) == numbered(5)


def test_a_new_topic_of_a_pattern_is_read_from_its_beginning(readers, bootstrap, unique):
    reader = readers("", subscribePattern=unique + r"\..*", **{"kafka.metadata.max.age.ms": "1"})
    start = reader.initialOffset()
    assert start == {}
    create(bootstrap, f"{unique}.a")
    fill(bootstrap, f"{unique}.a", numbered(5))
    end = wait_for(lambda: latest(reader, start), seconds=10)
    assert read(reader, start, end) == numbered(5)


def test_a_topic_that_was_named_must_be_there(readers, unique):
    with pytest.raises(MissingTopicError, match=f"topic {unique} does not exist"):
        readers(unique).initialOffset()


def test_a_stream_that_is_stopped_before_its_first_look_leaves_no_connection(readers, bootstrap, unique):
    create(bootstrap, unique)
    reader = readers(unique, startingOffsets="earliest")
    reader.initialOffset()
    assert reader._client._connections
    reader.stop()
    assert not reader._client._connections


def test_a_stream_has_no_end(readers, unique):
    with pytest.raises(OptionError, match="a streaming query has no end"):
        readers(unique, endingOffsets="latest")


# ------------------------------------------------------------------------------------------------ groups


def committed(bootstrap: str, group: str, topic: str) -> tuple[int, str] | None:
    client = Client(source_settings({"bootstrap.servers": bootstrap, "subscribe": topic}).client)
    found = fetch_committed(client, group, [TopicPartition(topic, 0)]).get(TopicPartition(topic, 0))
    client.close()
    return found and (found.offset, found.metadata)


def test_progress_is_stored_for_the_group_from_where_the_stream_stands(readers, bootstrap, unique):
    create(bootstrap, unique)
    fill(bootstrap, unique, numbered(10))
    reader = readers(unique, startingOffsets="earliest", groupId=unique)
    start = reader.initialOffset()
    end = latest(reader, start)
    assert committed(bootstrap, unique, unique) == (0, "")
    latest(reader, end)
    assert committed(bootstrap, unique, unique) == (10, "")


def test_a_start_at_the_latest_is_pinned_until_the_first_batch_is_done(readers, bootstrap, unique):
    create(bootstrap, unique)
    fill(bootstrap, unique, [b"before"])
    first = readers(unique, groupId=unique)
    start = first.initialOffset()
    fill(bootstrap, unique, numbered(10))
    end = latest(first, start)
    again = readers(unique, groupId=unique)  # the query died before its first batch was done
    assert again.initialOffset() == start
    assert latest(again, start) == end
    latest(again, end)  # the first batch is done
    fresh = readers(unique, groupId=unique)  # the checkpoint was deleted
    assert offsets(fresh.initialOffset(), unique) == {"0": 11}


@pytest.mark.parametrize("asked", ["a time", "offsets"])
def test_a_place_that_was_pinned_for_the_latest_is_not_where_a_time_or_an_offset_is(readers, bootstrap, unique, asked):
    """A stream that began at the latest and read nothing has no checkpoint, and the next run may say where to begin."""
    create(bootstrap, unique, 2)
    fill(bootstrap, unique, numbered(2))
    assert offsets(readers(unique, groupId=unique).initialOffset(), unique) == {"0": 2, "1": 0}
    fill(bootstrap, unique, numbered(3))
    now_ms = time.time_ns() // 1_000_000 + 1
    time.sleep(0.01)
    fill(bootstrap, unique, numbered(1))
    time_ms = {"startingTimestamp": str(now_ms), "startingOffsetsByTimestampStrategy": "latest"}
    place = {"startingOffsets": json.dumps({unique: {"0": 5, "1": -1}})}

    start = readers(unique, groupId=unique, **(time_ms if asked == "a time" else place)).initialOffset()

    assert offsets(start, unique) == {"0": 5, "1": 0}


def test_a_deleted_checkpoint_means_earliest_where_the_options_say_earliest(readers, bootstrap, unique):
    create(bootstrap, unique)
    fill(bootstrap, unique, numbered(10))
    first = readers(unique, groupId=unique, startingOffsets="earliest")
    latest(first, latest(first, first.initialOffset()))
    again = readers(unique, groupId=unique, startingOffsets="earliest")
    assert offsets(again.initialOffset(), unique) == {"0": 0}


def test_a_topic_that_is_gone_does_not_keep_the_progress_of_others_from_being_stored(
    readers, bootstrap, unique, caplog
):
    gone = f"{unique}.gone"
    for topic in (unique, gone):
        create(bootstrap, topic)
    reader = readers(f"{unique},{gone}", startingOffsets="earliest", groupId=unique, failOnDataLoss="false")
    start = reader.initialOffset()
    delete(bootstrap, gone)
    fill(bootstrap, unique, numbered(4))
    end = wait_for(lambda: found if (found := latest(reader, start)) != start else None, seconds=10)
    latest(reader, end)
    assert committed(bootstrap, unique, unique) == (4, "")
    assert "is not stored" not in caplog.text
