"""The streaming reader with a real broker, asked in the order in which Spark asks: without Spark, so in no time."""

import pickle
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

from clarion.model.ids import TopicPartition
from clarion.pipeline.connector_options import OptionError
from clarion.pipeline.kafka.client import Client
from clarion.pipeline.kafka.errors import DataLossError
from clarion.pipeline.kafka.offsets import fetch_committed
from clarion.pipeline.source.options import source_settings
from clarion.pipeline.source.positions import MissingTopicError
from clarion.pipeline.source.stream_reader import StreamReader
from tests.pipeline.topics import create, delete, delete_before, fill, numbered
from tests.waiting import wait_for

Readers = Callable[..., StreamReader]


@pytest.fixture
def readers(bootstrap: str) -> Iterator[Readers]:
    """Makes readers; all of them are closed at the end."""
    made: list[StreamReader] = []

    def make(topic: str, *, where: str = bootstrap, **options: str) -> StreamReader:
        subscription = {} if "subscribePattern" in options else {"subscribe": topic}
        given = {"bootstrap.servers": where, **subscription, **options}
        reader = StreamReader(source_settings({name.lower(): value for name, value in given.items()}))
        made.append(reader)
        return reader

    yield make
    for reader in made:
        reader.stop()


def read(reader: StreamReader, start: dict, end: dict) -> list[bytes]:
    """What executors read: each task by a copy of the reader that has been through a pickle."""
    copy = pickle.loads(pickle.dumps(reader))
    tasks = [pickle.loads(pickle.dumps(one)) for one in reader.partitions(start, end)]
    batches = [one for task in tasks for one in copy.read(task)]
    rows = [row for one in batches for row in one.select(["topic", "partition", "offset", "value"]).to_pylist()]
    return [row["value"] for row in sorted(rows, key=lambda row: (row["topic"], row["partition"], row["offset"]))]


def latest(reader: StreamReader, start: dict, limit: Any = None) -> dict:
    return reader.latestOffset(start, limit or reader.getDefaultReadLimit())


def add_partition(bootstrap: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_partitions([NewPartitions(topic, 2)])[topic].result(15)


def offsets(document: dict, topic: str) -> dict[str, int]:
    return {name: value for name, value in document[topic].items() if name not in ("id", "epochs")}


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


# ------------------------------------------------------------------------------------------------ faults


def test_retention_that_overtook_the_stream_is_told_or_skipped(readers, bootstrap, unique):
    create(bootstrap, unique)
    fill(bootstrap, unique, numbered(100), **{"batch.num.messages": 10})
    start = readers(unique, startingOffsets="earliest").initialOffset()
    delete_before(bootstrap, unique, 40)
    with pytest.raises(DataLossError, match=r"-0: offsets 0 to 39 are deleted, the log begins at 40"):
        latest(readers(unique), start)
    lenient = readers(unique, failOnDataLoss="false")
    end = latest(lenient, start)
    assert offsets(end, unique) == {"0": 100}
    assert read(lenient, start, end) == numbered(100)[40:]
    assert latest(lenient, start) == end


def test_a_topic_made_again_is_told_or_read_from_its_beginning(readers, bootstrap, unique):
    create(bootstrap, unique)
    fill(bootstrap, unique, numbered(10))
    strict, lenient = readers(unique), readers(unique, failOnDataLoss="false")
    start = strict.initialOffset()
    latest(strict, start)
    latest(lenient, start)
    delete(bootstrap, unique)
    create(bootstrap, unique)
    fill(bootstrap, unique, [b"new"] * 3)
    with pytest.raises(DataLossError, match=f"topic {unique} was deleted and made again"):
        latest(strict, start)
    end = latest(lenient, start)
    assert offsets(end, unique) == {"0": 3}
    assert end[unique]["id"] != start[unique]["id"]
    assert read(lenient, start, end) == [b"new"] * 3


def test_a_deleted_topic_is_told_and_otherwise_keeps_its_place(readers, bootstrap, unique):
    create(bootstrap, unique)
    fill(bootstrap, unique, numbered(7))
    start = latest(reader := readers(unique, startingOffsets="earliest"), reader.initialOffset())
    delete(bootstrap, unique)
    soon = {"kafka.default.api.timeout.ms": "300"}
    strict = readers(unique, **soon)
    with pytest.raises(DataLossError, match=f"topic {unique} is deleted"):
        wait_for(lambda: latest(strict, start) != start, seconds=10)
    lenient = readers(unique, failOnDataLoss="false", **soon)
    assert latest(lenient, start) == start
    assert latest(lenient, start) == start, "also when it has been told"
    now = readers(unique)
    now.prepareForTriggerAvailableNow()
    with pytest.raises(DataLossError, match=f"topic {unique} is deleted"):
        latest(now, start)


def test_what_retention_took_from_a_new_partition_is_told_or_skipped(readers, bootstrap, unique):
    create(bootstrap, unique)
    start = readers(unique, startingOffsets="earliest").initialOffset()
    add_partition(bootstrap, unique)
    fill(bootstrap, unique, numbered(100), 1, **{"batch.num.messages": 10})
    delete_before(bootstrap, unique, 60, 1)
    with pytest.raises(DataLossError, match=r"-1: offsets 0 to 59 are deleted, the log begins at 60"):
        latest(readers(unique), start)
    lenient = readers(unique, failOnDataLoss="false")
    assert read(lenient, start, latest(lenient, start)) == numbered(100)[60:]


def test_a_batch_with_a_new_partition_is_the_same_after_a_restart(readers, bootstrap, unique):
    """Planned, then retention, then the driver died: the batch that is played again must miss what is gone."""
    create(bootstrap, unique)
    first = readers(unique, startingOffsets="earliest")
    start = first.initialOffset()
    add_partition(bootstrap, unique)
    fill(bootstrap, unique, numbered(100), 1, **{"batch.num.messages": 10})
    end = latest(first, start)
    delete_before(bootstrap, unique, 60, 1)
    again = readers(unique)
    with pytest.raises(DataLossError, match=r"-1: offsets 0 to 59 are deleted"):
        read(again, start, end)


def test_a_checkpoint_of_sparks_own_connector_goes_on(readers, bootstrap, unique):
    create(bootstrap, unique, 2)
    fill(bootstrap, unique, numbered(10))
    reader = readers(unique)
    theirs = {unique: {"0": 4, "1": 0}}
    unfinished = {unique: {"0": 7, "1": 0}}
    assert read(reader, theirs, unfinished) == numbered(10)[4:7], "a batch that was planned before the move"
    end = latest(reader, unfinished)
    assert offsets(end, unique) == {"0": 10, "1": 0}
    assert read(reader, unfinished, end) == numbered(10)[7:]
    assert end[unique]["id"] == readers(unique).initialOffset()[unique]["id"]


def test_a_broker_that_restarts_is_waited_for(own_server, readers, unique):
    create(own_server.bootstrap, unique)
    fill(own_server.bootstrap, unique, numbered(10))
    reader = readers(unique, where=own_server.bootstrap, startingOffsets="earliest", groupId=unique)
    start = reader.initialOffset()
    end = latest(reader, start)
    own_server.restart(kill=True)
    fill(own_server.bootstrap, unique, numbered(10))
    later = wait_for(lambda: found if (found := latest(reader, end)) != end else None, seconds=30)
    assert offsets(later, unique) == {"0": 20}
    assert read(reader, start, later) == numbered(10) * 2


def cut(server, topic: str, offset: int) -> None:
    """The broker dies and its disk has lost the end of a log: everything from this offset on."""
    server.kill9()
    log = server.data_dir / f"{topic}-0" / f"{0:020}.log"
    raw, at = log.read_bytes(), 0
    while at < len(raw) and int.from_bytes(raw[at : at + 8], "big") < offset:
        at += 12 + int.from_bytes(raw[at + 8 : at + 12], "big")
    log.write_bytes(raw[:at])
    server.start()


def up_to_now(reader: StreamReader) -> StreamReader:
    reader.prepareForTriggerAvailableNow()
    return reader


def test_a_log_that_was_cut_and_written_anew_is_noticed(readers, own_server, unique):
    """It is as long as it was, and longer: only the leader's terms tell that what was read is not what is there."""
    where = own_server.bootstrap
    create(where, unique)
    for number in range(10):
        fill(where, unique, [b"first %d" % number])
    reader = readers(unique, where=where, startingOffsets="earliest")
    end = latest(reader, reader.initialOffset())
    assert (offsets(end, unique), end[unique]["epochs"].keys()) == ({"0": 10}, {"0"})
    assert latest(reader, end) == end

    cut(own_server, unique, 6)
    without_terms = {unique: {name: value for name, value in end[unique].items() if name != "epochs"}}
    with pytest.raises(DataLossError, match="the log ends at 6, before offset 10"):
        latest(up_to_now(readers(unique, where=where)), without_terms)
    lenient = up_to_now(readers(unique, where=where, failOnDataLoss="false"))
    assert [offsets(latest(lenient, without_terms), unique) for _ in range(2)] == [{"0": 10}] * 2
    for number in range(8):
        fill(where, unique, [b"second %d" % number])

    with pytest.raises(DataLossError, match="the log was cut at offset 6 and written anew"):
        latest(readers(unique, where=where), end)
    with pytest.raises(DataLossError, match="the log was cut at offset 6 and written anew"):
        latest(up_to_now(readers(unique, where=where)), end)
    forgiving = readers(unique, where=where, failOnDataLoss="false")
    after = latest(forgiving, end)
    assert offsets(after, unique) == {"0": 14}
    assert read(forgiving, end, after) == [b"second %d" % number for number in range(4, 8)]
    assert after[unique]["epochs"]["0"] > end[unique]["epochs"]["0"]
    own_server.restart()
    assert latest(readers(unique, where=where), after) == after  # a new leader that has all of it is nobody's loss
    assert latest(up_to_now(readers(unique, where=where)), after) == after
