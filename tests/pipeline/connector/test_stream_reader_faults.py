"""A stream reader whose topics, partitions and brokers are not what they were: nothing goes missing without a word."""

import json

import pytest

from clarion.model.errors import ErrorCode, KafkaError
from clarion.model.ids import TopicPartition
from clarion.pipeline.kafka import offsets as kafka_offsets
from clarion.pipeline.kafka.client import Client
from clarion.pipeline.kafka.errors import DataLossError
from clarion.pipeline.kafka.settings import ClientSettings
from clarion.pipeline.source.options import source_settings
from clarion.pipeline.source.reader import BatchReader
from clarion.pipeline.source.stream_reader import StreamReader
from tests.pipeline.connector.stream_readers import add_partition, latest, offsets, read
from tests.pipeline.topics import create, delete, delete_before, fill, numbered
from tests.waiting import wait_for


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


def test_a_batch_that_begins_behind_the_end_of_the_log_is_told(bootstrap, unique, caplog):
    """Where an archive's table ends, say, and the log has lost its end since."""
    create(bootstrap, unique)
    fill(bootstrap, unique, numbered(10))
    start = json.dumps({unique: {"0": 11}})
    options = {"bootstrap.servers": bootstrap, "subscribe": unique, "startingOffsets": start}
    with pytest.raises(DataLossError, match="-0: the log ends at 10, before offset 11, where reading goes on"):
        BatchReader(source_settings(options)).partitions()
    lenient = BatchReader(source_settings({**options, "failOnDataLoss": "false"}))
    assert [row for task in lenient.partitions() for row in lenient.read(task)] == []
    assert "the log ends at 10, before offset 11" in caplog.text
    at_its_end = BatchReader(source_settings({**options, "startingOffsets": json.dumps({unique: {"0": 10}})}))
    assert [row for task in at_its_end.partitions() for row in at_its_end.read(task)] == []


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


def test_a_partition_that_is_not_assigned_any_more_is_told(readers, bootstrap, unique):
    create(bootstrap, unique, 2)
    both, one = (json.dumps({unique: partitions}) for partitions in ([0, 1], [0]))
    before = readers(unique, assign=both, startingOffsets="earliest")
    fill(bootstrap, unique, numbered(3), 1)
    start = latest(before, before.initialOffset())
    with pytest.raises(DataLossError, match=f"partition {unique}-1 was read by this query and is not among"):
        latest(readers(unique, assign=one), start)
    fill(bootstrap, unique, numbered(2), 0)
    going_on = readers(unique, assign=one, failOnDataLoss="false")
    assert offsets(latest(going_on, start), unique) == {"0": 2, "1": 3}


def lose_connections(reader: StreamReader, *topics: str) -> None:
    """As a broker that is restarted leaves them."""
    reader._live._watch.close()
    reader._client.close()
    reader._client.forget_leaders(topics)


@pytest.mark.parametrize("loss", ["true", "false"])
def test_a_topic_that_is_deleted_while_its_broker_is_away_keeps_its_place(readers, bootstrap, unique, loss):
    """What was found before is looked for anew: the others go on, and it is told when it is time."""
    gone = f"{unique}.gone"
    for topic in (unique, gone):
        create(bootstrap, topic)
    options = {"startingOffsets": "earliest", "kafka.metadata.max.age.ms": "600000", "failOnDataLoss": loss}
    reader = readers(f"{unique},{gone}", **options)
    start = reader.initialOffset()
    latest(reader, start)
    delete(bootstrap, gone)
    fill(bootstrap, unique, numbered(3))
    lose_connections(reader, unique, gone)
    end = wait_for(lambda: found if (found := latest(reader, start)) != start else None)
    assert (offsets(end, unique), offsets(end, gone)) == ({"0": 3}, {"0": 0})


def test_a_run_to_what_is_there_goes_on_when_a_topic_is_deleted_meanwhile(readers, bootstrap, unique):
    gone = f"{unique}.gone"
    for topic in (unique, gone):
        create(bootstrap, topic)
        fill(bootstrap, topic, numbered(3))
    reader = readers(f"{unique},{gone}", startingOffsets="earliest", failOnDataLoss="false")
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    delete(bootstrap, gone)
    lose_connections(reader, unique, gone)
    end = latest(reader, start)
    assert read(reader, start, end) == numbered(3), "and the reader of the other one tells that it is lost"
    assert latest(reader, end) == end


@pytest.mark.parametrize("once", [True, False])
def test_a_topic_that_is_made_again_with_fewer_partitions_is_not_waited_for(readers, bootstrap, unique, once):
    """While its broker was away: the partitions that it has not any more never get a leader."""
    create(bootstrap, unique, 3)
    fill(bootstrap, unique, numbered(3), 2)
    patience = {"kafka.metadata.max.age.ms": "600000", "kafka.default.api.timeout.ms": "30000"}
    reader = readers(unique, startingOffsets="earliest", **patience)
    start = reader.initialOffset()
    if once:
        reader.prepareForTriggerAvailableNow()
    else:
        start = latest(reader, start)
    delete(bootstrap, unique)
    create(bootstrap, unique, 1)
    lose_connections(reader, unique)
    with pytest.raises(DataLossError, match="was deleted and made again"):
        read(reader, start, latest(reader, start))


def test_a_new_partition_that_its_leader_does_not_know_yet_is_waited_for(bootstrap, unique, monkeypatch):
    create(bootstrap, unique)
    fill(bootstrap, unique, numbered(3))
    answers = iter([ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION])

    def late(client, leader, asked, isolation, ask=kafka_offsets._ask_leader):
        found = ask(client, leader, asked, isolation)
        code = next(answers, None)
        return found if code is None else [(tp, code, -1) for tp, _, _ in found]

    monkeypatch.setattr(kafka_offsets, "_ask_leader", late)
    client = Client(ClientSettings((bootstrap,)))
    assert kafka_offsets.list_offsets(client, {TopicPartition(unique, 0): kafka_offsets.LATEST}) == {(unique, 0): 3}
    with pytest.raises(KafkaError, match="UNKNOWN_TOPIC_OR_PARTITION"):  # which nobody knows, and at once
        kafka_offsets.list_offsets(client, {TopicPartition(f"{unique}.none", 0): kafka_offsets.LATEST})
    client.close()


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
