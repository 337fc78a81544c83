"""Pipelines played against a real broker and a real Spark: from files, as people run them."""

import json
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from clarion.pipeline.definition import BATCH, STREAM, RunRefusedError
from clarion.pipeline.lake import read_table
from clarion.pipeline.state_files import StateFolder
from tests.pipeline.topics import create
from tests.waiting import wait_for

# A busy machine takes a minute for a first batch; and one Spark is enough.
pytestmark = [pytest.mark.timeout(400), pytest.mark.spark]

START = datetime(2026, 11, 15, 10, 0, tzinfo=UTC)


HEADERS = [("trace", b"\x00\x01"), ("empty", None)]
SENT_MS = time.time_ns() // 1_000_000 - 60_000


def send(bootstrap: str, topic: str, values, keys=None) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for number, value in enumerate(values):
        producer.produce(
            topic, value, keys[number] if keys else None, partition=0, headers=HEADERS, timestamp=SENT_MS + number
        )
    assert producer.flush(30) == 0


def receive(bootstrap: str, topic: str, count: int, partitions: int = 1):
    """The first `count` messages of a topic, and proof that there are no more."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader", "enable.partition.eof": True,
                         "enable.auto.commit": False})  # fmt: skip
    consumer.assign([TopicPartition(topic, each, OFFSET_BEGINNING) for each in range(partitions)])
    messages, ends = [], set()
    while len(ends) < partitions:
        message = consumer.poll(20)
        assert message is not None, f"{topic}: no answer"
        if message.error():
            ends.add(message.partition())
        else:
            messages.append(message)
    consumer.close()
    assert len(messages) == count, [each.value() for each in messages[:20]]
    return messages


def log(second: int, level: str, service: str, latency: object = 1.5) -> bytes:
    moment = (START + timedelta(seconds=second)).isoformat()
    return json.dumps({"ts": moment, "level": level, "service": service, "latency_ms": latency}).encode()


PAGE = (Path(__file__).parents[3] / "docs" / "pipelines.md").read_text()
EXAMPLE = PAGE.split("```python\n")[1].partition("```")[0]


def test_the_example_word_by_word_and_a_restart_that_goes_on_where_it_was(stage, monkeypatch):
    monkeypatch.chdir(stage.folder)
    create(stage.bootstrap, "logs")
    send(stage.bootstrap, "logs", [
        *(log(second, "ERROR" if second % 2 else "INFO", "pay") for second in range(60)),
        log(5, "ERROR", "search"), b"nonsense", log(7, "ERROR", "pay", "slow"), log(200, "ERROR", "pay"),
    ])  # fmt: skip
    path = stage.file(EXAMPLE)
    first = stage.play(path).progresses[0]
    assert (first.state, first.rows_in, first.rows_out, first.rows_bad) == ("ended", 64, 2, 2), first
    assert first.last.watermark == "2026-11-15T10:02:20.000Z"
    assert first.lag == 0

    send(stage.bootstrap, "logs", [log(30, "ERROR", "late"), log(400, "ERROR", "pay")])
    second = stage.play(path).progresses[0]
    assert (second.state, second.rows_in, second.rows_out, second.rows_bad) == ("ended", 2, 1, 0), second

    found = [(each.key(), json.loads(each.value())) for each in receive(stage.bootstrap, "errors_per_minute", 3)]
    assert sorted((key, row["service"], row["window"]["start"], row["count"]) for key, row in found) == [
        (b"pay", "pay", "2026-11-15T10:00:00.000Z", 30),
        (b"pay", "pay", "2026-11-15T10:03:00.000Z", 1),
        (b"search", "search", "2026-11-15T10:00:00.000Z", 1),
    ]
    rows = read_table(stage.spark, "lake/errors_per_minute").collect()
    assert sorted((row["service"], row["count"]) for row in rows) == [("pay", 1), ("pay", 30), ("search", 1)]

    bad = receive(stage.bootstrap, "errors_per_minute.quarantine", 2)
    reasons = {each.value(): dict(each.headers()) for each in bad}
    assert reasons[b"nonsense"]["clarion.reason"].startswith(b"not JSON")
    slow = reasons[log(7, "ERROR", "pay", "slow")]
    assert slow["clarion.reason"] == b'field latency_ms: "slow" is no double'
    assert (slow["clarion.topic"], slow["clarion.partition"], slow["clarion.offset"]) == (b"logs", b"0", b"62")

    with pytest.raises(RunRefusedError, match="errors_per_minute has begun"):
        stage.play(path, starting={"startingOffsets": "latest"})


def test_bytes_pass_through_and_a_batch_takes_only_its_range(stage):
    create(stage.bootstrap, "raw", 1)
    keys = [b"\x00\xff", None, b"", b"k"]
    values = [b"\xff\x00", b"", None, b"last"]
    send(stage.bootstrap, "raw", values, keys)
    path = stage.file(
        """
        from clarion.pipeline import pipeline, topic

        @pipeline(reads=topic("raw"), writes=topic("raw-copy", partitions=1))
        def copy(raw):
            return raw

        @pipeline(reads=topic("raw", key="who", value="what"), writes=topic("raw-text", key="who", partitions=1))
        def text(raw):
            return raw.where("offset = 3").select("who", "what", "offset")
        """
    )
    ending = {"endingOffsets": json.dumps({"raw": {"0": 3}})}
    played = stage.play(path, BATCH, ending=ending)
    assert [(each.state, each.rows_out) for each in played.progresses] == [("ended", 3), ("ended", 0)]
    copies = receive(stage.bootstrap, "raw-copy", 3)
    assert [(each.key(), each.value()) for each in copies] == list(zip(keys[:3], values[:3], strict=True))
    assert [each.headers() for each in copies] == [HEADERS] * 3
    assert [each.timestamp()[1] for each in copies] == [SENT_MS, SENT_MS + 1, SENT_MS + 2]

    stage.play(path, BATCH, starting={"startingOffsets": json.dumps({"raw": {"0": 3}})})
    assert [each.value() for each in receive(stage.bootstrap, "raw-copy", 4)][-1] == b"last"
    (message,) = receive(stage.bootstrap, "raw-text", 1)
    assert (message.key(), json.loads(message.value())) == (b"k", {"who": "k", "what": "last", "offset": 3})


def test_a_stream_waits_for_its_topic_stops_when_asked_and_tells_how_it_goes(stage):
    path = stage.file(
        """
        from clarion.pipeline import pipeline, topic, table

        @pipeline(reads=topic("later", value="line"), writes=table("{folder}/lines"))
        def lines(later):
            return later.select("line")

        @pipeline(reads=topic("later", json="a int not null", on_bad="fail"), writes=table("{folder}/numbers"))
        def numbers(later):
            return later
        """.replace("{folder}", str(stage.folder))
    )
    runner = stage.runner(path, STREAM, must_wait=True)
    lines, numbers = runner.progresses
    good: list[bool] = []
    thread = threading.Thread(target=lambda: good.append(runner.run(lambda config: stage.spark)))
    thread.start()
    wait_for(lambda: lines.state == "waiting", seconds=30, what="both wait")
    assert lines.detail == f"topic later does not exist at {stage.bootstrap}"
    create(stage.bootstrap, "later")
    send(stage.bootstrap, "later", [b"one", b"two"])
    wait_for(lambda: lines.rows_out == 2 or lines.last_error, seconds=240, what="both lines were read")
    assert lines.last_error == ""
    wait_for(lambda: numbers.state == "failed", seconds=120, what="a bad record fails the one that wants it so")
    assert "bad record in later-0 at offset 0" in numbers.last_error
    assert StateFolder(stage.folder / "state", "lines").read_status()["state"] == "running"

    StateFolder(stage.folder / "state", "lines").request_stop()
    thread.join(60)
    assert not thread.is_alive()
    assert (lines.state, good) == ("stopped", [False])
    assert sorted(row.line for row in read_table(stage.spark, f"{stage.folder}/lines").collect()) == ["one", "two"]


def test_what_cannot_run_is_told_in_one_line(stage):
    create(stage.bootstrap, "there", 1)
    path = stage.file(
        """
        from clarion.pipeline import pipeline, topic

        @pipeline(reads=topic("not-there"), writes=topic("out"))
        def absent(rows):
            return rows

        @pipeline(reads=topic("there"), writes=topic("out"))
        def misspelt(rows):
            return rows.where("levle = 1")

        @pipeline(reads=topic("there"), writes=topic("out"))
        def forgotten(rows):
            return rows.groupBy(window("timestamp", "1 minute")).count()

        @pipeline(reads=topic("there"), writes=topic("out"))
        def nothing(rows):
            rows.select("value")

        @pipeline(reads=topic("there"), writes=topic("out", key="who"))
        def keyless(rows):
            return rows

        @pipeline(reads=topic("there"), writes=topic("out"))
        def unbounded(rows):
            return rows.groupBy("key").count()
        """
    )
    told = {each.name: each.last_error for each in stage.play(path).progresses}
    assert told["absent"] == f"topic not-there does not exist at {stage.bootstrap}"
    assert told["misspelt"].startswith(f"{path}:10: ")
    assert "levle" in told["misspelt"]
    assert told["forgotten"] == (
        f"{path}:14: name 'window' is not defined; add `from pyspark.sql.functions import window`"
    )
    assert told["nothing"].endswith("is `return` missing?")
    assert "there is no column 'who', only key, value" in told["keyless"]
    assert "watermark" in told["unbounded"]
    assert all("\n" not in each and len(each) < 500 for each in told.values())


def test_a_broker_that_is_away_fails_a_run_that_does_not_wait(stage):
    path = stage.file(
        """
        from clarion.pipeline import pipeline, topic

        @pipeline(reads=topic("a"), writes=topic("b"))
        def one(rows):
            return rows
        """
    )
    (one,) = stage.play(path, bootstrap="127.0.0.1:1").progresses
    assert one.state == "failed"
    assert one.last_error.startswith("nothing answers at 127.0.0.1:1; is `clarion serve` running?")


def test_a_pipeline_with_many_slow_tasks_does_not_keep_another_one_waiting(stage):
    """First come, first served would let the quick one in when every task of the slow one has begun."""
    create(stage.bootstrap, "much", 1)
    create(stage.bootstrap, "little", 1)
    send(stage.bootstrap, "much", [b"%d" % each for each in range(12)])
    send(stage.bootstrap, "little", [b"one"])
    path = stage.file(
        """
        import time
        from pathlib import Path
        from pyspark.sql.functions import udf
        from clarion.pipeline import pipeline, topic

        begun, quick_ran = Path("{folder}/begun"), Path("{folder}/quick-ran")

        @udf("string")
        def slowly(text):
            begun.open("a").write(".")
            end = time.monotonic() + 3
            while time.monotonic() < end and not quick_ran.exists():
                time.sleep(0.05)
            return text

        @udf("long")
        def slow_tasks_that_have_begun(text):
            quick_ran.touch()
            return len(begun.read_text()) if begun.exists() else 0

        @pipeline(reads=topic("much", value="v", options={"minPartitions": 12}), writes=topic("much-out", value="v"))
        def slow(much):
            return much.select(slowly("v").alias("v"))

        @pipeline(reads=topic("little", value="v"), writes=topic("little-out", value="n", partitions=1))
        def quick(little):
            return little.select(slow_tasks_that_have_begun("v").alias("n"))
        """.replace("{folder}", str(stage.folder))
    )
    played = stage.play(path)
    assert [(each.state, each.rows_out) for each in played.progresses] == [("ended", 12), ("ended", 1)]
    (message,) = receive(stage.bootstrap, "little-out", 1)
    assert int(message.value()) < 12


def test_rows_choose_their_topic_partition_headers_and_time(stage):
    create(stage.bootstrap, "mixed", 1)
    for name in ("to-a", "to-b"):
        create(stage.bootstrap, name, 2)
    send(stage.bootstrap, "mixed", [
        b'{"kind": "a", "n": 1, "at": "2026-11-15T10:00:00Z"}', b'{"kind": "b", "n": 2, "at": "2026-11-15T11:00:00Z"}',
    ])  # fmt: skip
    path = stage.file(
        """
        from pyspark.sql.functions import col, concat, create_map, lit
        from clarion.pipeline import pipeline, topic

        @pipeline(
            reads=topic("mixed", json="kind string, n int, at timestamp", headers="came_with", timestamp="sent"),
            writes=topic(by="to", key="kind", headers="headers", timestamp="at", partition="slot"),
        )
        def routed(mixed):
            return mixed.select(
                concat(lit("to-"), "kind").alias("to"), "kind", "n", "at", lit(1).alias("slot"),
                create_map(lit("first"), col("came_with")[0]["key"]).alias("headers"),
                (col("sent") > "2020-01-01").alias("is_recent"),
            )

        @pipeline(reads=topic("mixed", value="v", partition="p"), writes=topic(by="to", value="v"))
        def loop(mixed):
            return mixed.select("v", lit("mixed").alias("to"), "p")
        """
    )
    routed, loop = stage.play(path).progresses
    assert (routed.state, routed.rows_out) == ("ended", 2), routed.last_error
    assert "a row names topic mixed, which the pipeline reads" in loop.last_error
    for kind, number, hour in (("a", 1, 10), ("b", 2, 11)):
        (message,) = receive(stage.bootstrap, f"to-{kind}", 1, partitions=2)
        moment = datetime(2026, 11, 15, hour, tzinfo=UTC)
        assert (message.key(), message.partition()) == (kind.encode(), 1)
        assert message.headers() == [("first", b"trace")]
        assert message.timestamp()[1] == moment.timestamp() * 1000
        value = json.loads(message.value())
        assert value == {"kind": kind, "n": number, "at": value["at"], "is_recent": True}
        assert datetime.fromisoformat(value["at"]) == moment
