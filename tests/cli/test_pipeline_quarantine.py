"""`clarion pipeline quarantine …` against a real broker, with records as pipelines leave them there."""

import base64
import json

import pytest
from confluent_kafka import Producer

from clarion.cli.link import Link
from clarion.cli.pipeline_quarantine import pipeline_of
from clarion.cli.quarantine_topic import QuarantineTopic, unique
from clarion.pipeline.broker_link import BrokerLink
from clarion.pipeline.quarantine import copy_of, cut_to, send
from clarion.pipeline.runner import Runner
from clarion.testing import embedded
from tests.cli.conftest import Shell
from tests.pipeline.topics import contents, create, delete, delete_before

MOMENT = 1_794_700_800_000
BAD = [(b"k0", b"nonsense"), (None, b'{"\xff": "\x00"}'), (b"k2", b'{"n": "x"}'), (b"k3", None)]


@pytest.fixture
def broker():
    with embedded() as running:
        yield running


@pytest.fixture
def desk(broker):
    """Four bad messages of the topic `logs`, and their copies in the quarantine of the pipeline `numbers`."""
    create(broker.bootstrap, "logs", 2)
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for key, value in BAD:
        producer.produce("logs", value, key, partition=1, headers=[("trace", b"t")])
    assert producer.flush(15) == 0
    quarantine(broker.bootstrap, range(len(BAD)))
    return Shell(broker.bootstrap)


def quarantine(bootstrap: str, numbers, *, cut: int = 1_000_000) -> None:
    connection = {"bootstrap.servers": bootstrap}
    BrokerLink(connection).make_quarantine("numbers.quarantine")
    rows = [
        {"key": BAD[n][0], "value": BAD[n][1], "topic": "logs", "partition": 1, "offset": n, "timestamp": MOMENT,
         "fields": ["n"]}
        for n in numbers
    ]  # fmt: skip
    send(connection, "numbers.quarantine", [cut_to(copy_of(each, "numbers", {"n": "int"}, []), cut) for each in rows])


def test_list_shows_each_bad_record_once_with_its_origin_and_its_reason(desk, broker):
    quarantine(broker.bootstrap, [1, 2])  # a task was tried again
    listed = json.loads(desk("pipeline", "quarantine", "list", "numbers", "--json").out)
    assert [(each["place"], each["origin"], each["redriven"]) for each in listed] == [
        (f"0:{n}", f"logs-1 at {n}", False) for n in range(4)
    ]
    assert [each["reason"].partition(":")[0] for each in listed] == ["not JSON", "not UTF-8", "field n", "no value"]
    assert len(json.loads(desk("pipeline", "quarantine", "list", "numbers", "-n", "1", "--json").out)) == 1
    plain = desk("pipeline", "quarantine", "list", "numbers.quarantine").out
    assert "PLACE" in plain
    assert 'field n: "x" is no int' in plain
    assert json.loads(desk("pipeline", "quarantine", "list", "--json").out) == [
        {"quarantine": "numbers.quarantine", "records": 6, "waiting": 6}
    ]


def test_show_gives_one_record_whole_and_cannot_steer_the_terminal(desk):
    shown = desk("pipeline", "quarantine", "show", "numbers", "2").out
    assert 'reason:     field n: "x" is no int\n' in shown
    assert 'value:      {"n": "x"}\n' in shown
    told = json.loads(desk("pipeline", "quarantine", "show", "numbers", "0:1", "--json").out)
    assert base64.b64decode(told["value_base64"]) == BAD[1][1]
    assert ["clarion.offset", "1"] in [list(each) for each in told["headers"]]
    assert desk("pipeline", "quarantine", "show", "numbers", "1", "--value").raw == BAD[1][1]
    assert "\x00" not in desk("pipeline", "quarantine", "show", "numbers", "1").out
    assert "key:        (none)\n" in desk("pipeline", "quarantine", "show", "numbers", "1").out


def test_redrive_sends_everything_back_once(desk, broker):
    quarantine(broker.bootstrap, [0])
    done = desk("pipeline", "quarantine", "redrive", "numbers", "--yes", "--json")
    assert json.loads(done.out) == {"quarantine": "numbers.quarantine", "redriven": 4, "truncated": []}
    back = [each for each in broker.messages("logs") if each.offset >= 4]
    assert [(each.partition, each.key, each.value) for each in back] == [(1, key, value) for key, value in BAD]
    assert list(back[0].headers) == [("trace", b"t"), ("clarion.redriven", b"numbers.quarantine 0:0")]
    again = desk("pipeline", "quarantine", "redrive", "numbers", "--yes")
    assert again.err == "sent 0 records into the topics they came from\n"
    assert all(each["redriven"] for each in json.loads(desk("pipeline", "quarantine", "list", "numbers", "--json").out))
    assert json.loads(desk("pipeline", "quarantine", "list", "--json").out)[0]["waiting"] == 0


def test_what_becomes_bad_during_a_redrive_is_for_the_next_one(desk, broker):
    """Else it would be sent now, not be remembered, and be sent once more."""
    with QuarantineTopic(Link(broker.bootstrap, {}), "numbers") as opened:
        BAD.append((b"k4", b"late"))
        try:
            quarantine(broker.bootstrap, [4])
        finally:
            BAD.pop()
        waiting = opened.waiting(again=False)
        opened.remember()
    assert [each.message.key for each in waiting] == [key for key, _ in BAD]
    with QuarantineTopic(Link(broker.bootstrap, {}), "numbers") as opened:
        assert [each.message.value for each in opened.waiting(again=False)] == [b"late"]


def test_bad_records_of_a_topic_that_was_made_again_are_others(desk, broker):
    quarantine(broker.bootstrap, [1], cut=4)  # tried again into a quarantine that took less
    other = copy_of({"key": b"k0", "value": b"no sense", "topic": "logs", "partition": 1, "offset": 0,
                     "timestamp": MOMENT, "fields": ["n"]}, "numbers", {"n": "int"}, [])  # fmt: skip
    send({"bootstrap.servers": broker.bootstrap}, "numbers.quarantine", [other])
    with QuarantineTopic(Link(broker.bootstrap, {}), "numbers") as opened:
        found = unique(opened.waiting(again=False))
        assert unique(found[::-1]) == found[::-1]
    assert [each.message.value for each in found] == [*(value for _, value in BAD), b"no sense"]


def test_a_message_of_a_topic_that_was_made_again_is_no_bad_records_whole(desk, broker):
    """It stands at the same place and begins with the same bytes, and is another message all the same."""
    create(broker.bootstrap, "mended")
    quarantine(broker.bootstrap, [0], cut=8)
    delete(broker.bootstrap, "logs")
    create(broker.bootstrap, "logs", 2)
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for key, _ in BAD:
        producer.produce("logs", b"nonsense, and much more of it", key, partition=1)
    assert producer.flush(15) == 0
    assert desk("pipeline", "quarantine", "redrive", "numbers", "0", "--into", "mended", "--yes").status == 0
    assert contents(broker.bootstrap, "mended") == [b"nonsense"]
    assert desk("pipeline", "quarantine", "redrive", "numbers", "4", "--into", "mended", "--yes").status == 1
    assert contents(broker.bootstrap, "mended") == [b"nonsense"]


def test_the_same_bytes_at_the_same_place_of_a_topic_that_was_made_again_are_another_record(desk, broker):
    again = {"key": b"k0", "value": b"nonsense", "topic": "logs", "partition": 1, "offset": 0, "timestamp": MOMENT + 1,
             "fields": ["n"]}  # fmt: skip
    send({"bootstrap.servers": broker.bootstrap}, "numbers.quarantine", [copy_of(again, "numbers", {"n": "int"}, [])])
    with QuarantineTopic(Link(broker.bootstrap, {}), "numbers") as opened:
        assert len(unique(opened.waiting(again=False))) == len(BAD) + 1


def test_a_redrive_through_a_pipeline_that_was_stopped_is_not_remembered(desk, monkeypatch, tmp_path):
    path = tmp_path / "numbers.py"
    path.write_text(
        "from clarion.pipeline import pipeline, topic\n"
        "@pipeline(reads=topic('logs', json='n int'), writes=topic('out'))\n"
        "def numbers(logs):\n    return logs\n"
    )

    def stopped_at_once(runner: Runner, _: object) -> bool:
        """Ctrl-C before Spark is there."""
        for each in runner.runs:
            each.abandon()
        return True

    monkeypatch.setattr(Runner, "run", stopped_at_once)
    done = desk("pipeline", "quarantine", "redrive", "numbers", "--through", str(path), "--yes")
    assert (done.status, "stopped before it was through" in done.err) == (1, True)
    assert json.loads(desk("pipeline", "quarantine", "list", "--json").out)[0]["waiting"] == 4


def test_through_a_pipeline_go_as_many_as_there_are(desk, monkeypatch, tmp_path):
    """Into a topic they would be held in memory; the advice for more than that is to go through the pipeline."""
    monkeypatch.setattr("clarion.cli.quarantine_topic.RECORDS_MAX", 3)
    path = tmp_path / "numbers.py"
    path.write_text(
        "from clarion.pipeline import pipeline, topic\n"
        "@pipeline(reads=topic('logs', json='n int'), writes=topic('out'))\n"
        "def numbers(logs):\n    return logs\n"
    )

    def ended(runner: Runner, _: object) -> bool:
        for each in runner.progresses:
            each.state = "ended"
        return True

    monkeypatch.setattr(Runner, "run", ended)
    assert "use --through" in desk("pipeline", "quarantine", "redrive", "numbers", "--yes").err
    done = desk("pipeline", "quarantine", "redrive", "numbers", "--through", str(path), "--yes", "--json")
    assert (done.status, json.loads(done.out)["redriven"]) == (0, 4)


def test_redrive_of_one_place_into_another_topic(desk, broker):
    create(broker.bootstrap, "mended")
    assert desk("pipeline", "quarantine", "redrive", "numbers", "0:2", "--into", "mended", "--yes").status == 0
    assert contents(broker.bootstrap, "mended") == [b'{"n": "x"}']
    assert json.loads(desk("pipeline", "quarantine", "list", "--json").out)[0]["waiting"] == 4, "the others wait"


def test_a_record_that_was_cut_off_comes_back_whole_from_its_topic_or_not_at_all(desk, broker):
    create(broker.bootstrap, "mended")
    quarantine(broker.bootstrap, [0], cut=8)
    (record,) = (json.loads(desk("pipeline", "quarantine", "show", "numbers", "4", "--json").out),)
    assert record["value"] == "nonsen"
    assert desk("pipeline", "quarantine", "redrive", "numbers", "4", "--into", "mended", "--yes").status == 0
    assert contents(broker.bootstrap, "mended") == [b"nonsense"]
    delete_before(broker.bootstrap, "logs", 1, 1)
    failed = desk("pipeline", "quarantine", "redrive", "numbers", "4", "--into", "mended", "--yes")
    assert failed.status == 1
    assert "cut off in the quarantine, and the whole one is gone: 0:4" in failed.err


def test_what_was_bad_again_goes_back_to_where_it_first_came_from(desk, broker):
    """A redrive through the pipeline reads the quarantine, so that it is the origin of what is still bad."""
    row = {"key": b"k2", "value": b'{"n": "x"}', "topic": "numbers.quarantine", "partition": 0, "offset": 2,
           "timestamp": MOMENT, "fields": ["n"]}  # fmt: skip
    copy = copy_of(row, "numbers", {"n": "int"}, [])
    send({"bootstrap.servers": broker.bootstrap}, "numbers.quarantine", [copy])
    assert desk("pipeline", "quarantine", "redrive", "numbers", "4", "--yes").status == 0
    assert [(each.partition, each.value) for each in broker.messages("logs")][-1] == (1, b'{"n": "x"}')


@pytest.mark.parametrize(
    ("words", "status", "reason"),
    [
        (["list", "letters"], 1, "there is no quarantine letters.quarantine (known: numbers.quarantine)"),
        (["show", "numbers", "9"], 1, "numbers.quarantine has no record at 0:9"),
        (["show", "numbers", "9:0"], 1, "numbers.quarantine has no record at 9:0"),
        (["show", "numbers", "last"], 2, "last: write an offset (12) or partition:offset (0:12)"),
        (["redrive", "numbers", "1", "--through", "x.py"], 2, "leave out --into and places"),
        (["redrive", "numbers", "--through", "gone.py", "--yes"], 1, "gone.py: no such file"),
    ],
)
def test_what_cannot_be_done_is_told_in_one_line(desk, words, status, reason):
    done = desk("pipeline", "quarantine", *words)
    assert (done.status, done.out, done.err.count("\n")) == (status, "", 1)
    assert reason in done.err


def test_through_a_pipeline_means_that_it_reads_its_quarantine(tmp_path):
    path = tmp_path / "numbers.py"
    path.write_text(
        "from clarion.pipeline import pipeline, topic\n"
        "@pipeline(reads=topic('logs-.*', json='n int'), writes=topic('out'))\n"
        "def numbers(logs):\n    return logs\n"
    )
    one = pipeline_of("numbers.quarantine", path)
    (source,) = one.reads
    assert (one.name, source.names, source.pattern) == ("numbers.redrive", ("numbers.quarantine",), None)
    assert source.quarantine_for(one.name) == "numbers.quarantine"
