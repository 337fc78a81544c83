"""Why a record is bad, in words; and what its copy in the quarantine holds."""

import pyarrow as pa
import pytest

from clarion.pipeline.quarantine import copy_of, cut_to, keeper, reason, rows_of, send
from tests.pipeline import topics

TYPES = {"ts": "timestamp", "level": "string", "latency_ms": "double"}


@pytest.mark.parametrize(
    ("value", "empty", "words"),
    [
        (None, ["ts", "level"], "no value"),
        (b"", ["ts"], "not JSON: Expecting value: line 1 column 1 (char 0)"),
        (b"nonsense", ["ts"], "not JSON: Expecting value: line 1 column 1 (char 0)"),
        (b'{"a": 1} {"b": 2}', [], "not JSON: Extra data: line 1 column 10 (char 9)"),
        (b'{"level": "\xff"}', [], "not UTF-8: invalid start byte at byte 11"),
        (b"[1]", ["ts"], "not a JSON object but a list"),
        (b"null", ["ts"], "not a JSON object but null"),
        (b"true", ["ts"], "not a JSON object but a truth value"),
        (b'{"latency_ms": "abc"}', ["ts", "latency_ms"], 'field latency_ms: "abc" is no double'),
        (b'{"level": "x"}', ["ts", "latency_ms"], "field ts is missing"),
        (b'{"level": "x", "ts": null}', ["ts"], "field ts is missing"),
        (b'{"level": "x"}', [], "does not fit the declared JSON"),
        pytest.param(b"[" * 200_000 + b"]" * 200_000, ["ts"], "nested too deeply", id="deep list"),
        pytest.param(b'{"ts": ' * 200_000, ["ts"], "nested too deeply", id="deep object"),
    ],
)
def test_the_reason_says_what_was_wrong(value, empty, words):
    assert reason(value, empty, TYPES, ["ts"]) == words


def test_a_reason_is_short_however_long_the_value_is():
    assert len(reason(b'{"ts": "' + b"x" * 10_000 + b'"}', ["ts"], TYPES, [])) <= 300


def test_a_copy_has_the_bytes_as_they_were_and_its_origin_in_headers():
    row = {
        "key": b"\x00\xff", "value": b"nonsense", "topic": "logs", "partition": 3, "offset": 42,
        "timestamp": 1794700800000, "fields": ["ts"],
    }  # fmt: skip
    key, value, headers = copy_of(row, "errors", TYPES, [])
    assert (key, value) == (b"\x00\xff", b"nonsense")
    assert dict(headers) == {
        "clarion.reason": b"not JSON: Expecting value: line 1 column 1 (char 0)",
        "clarion.topic": b"logs",
        "clarion.partition": b"3",
        "clarion.offset": b"42",
        "clarion.timestamp": b"1794700800000",
        "clarion.pipeline": b"errors",
    }


def test_rows_have_their_time_in_milliseconds_whatever_year_it_is():
    micros = pa.array([1_794_700_800_000_999, 1_700_000_000_000_000_000, -1_000, None], pa.int64())
    times = micros.view(pa.timestamp("us", tz="UTC"))
    rows = rows_of(pa.StructArray.from_arrays([pa.array([b"a", None, b"c", b"d"]), times], ["value", "timestamp"]))
    assert [each["timestamp"] for each in rows] == [1_794_700_800_000, 1_700_000_000_000_000, -1, None]
    assert [each["value"] for each in rows] == [b"a", None, b"c", b"d"]


def headers_of(partition: int = 0) -> tuple[tuple[str, bytes], ...]:
    return (("clarion.partition", b"%d" % partition),)


def test_what_is_too_large_is_cut_and_says_how_large_it_was():
    assert cut_to((b"k", b"v" * 99, ()), 100) == (b"k", b"v" * 99, ())
    key, value, headers = cut_to((b"k" * 80, b"v" * 99, headers_of()), 100)
    assert (len(key), len(value)) == (50, 50)
    assert headers == (*headers_of(), ("clarion.truncated", b"key 80, value 99 bytes"))
    assert cut_to((None, b"v" * 200, ()), 100)[:2] == (None, b"v" * 100)
    assert cut_to((b"k" * 200, None, ()), 0)[:2] == (b"", None)


@pytest.mark.parametrize("bytes_max", ["1114124", "20000", "400"])
def test_a_bad_record_of_any_size_reaches_a_quarantine_of_any_size(broker, unique, bytes_max):
    topics.create(broker.bootstrap, unique, 2, max_message_bytes=bytes_max)
    sizes = [10, 2_000_000, 100, 300_000]
    copies = [(b"key", b"%d " % n + b"x" * size, headers_of(n)) for n, size in enumerate(sizes)]

    send({"bootstrap.servers": broker.bootstrap}, unique, copies)

    kept = topics.contents(broker.bootstrap, unique)
    assert {b"%d" % n for n in range(4)} == {each.split()[0] for each in kept}
    assert b"0 " + b"x" * 10 in kept


def test_a_bad_record_of_any_year_is_kept_and_only_good_rows_stay(broker, unique):
    topics.create(broker.bootstrap, unique)
    kind = pa.struct(
        {"key": pa.binary(), "topic": pa.string(), "partition": pa.int32(), "offset": pa.int64(),
         "timestamp": pa.timestamp("us", tz="UTC"), "value": pa.binary(), "fields": pa.list_(pa.string())}
    )  # fmt: skip
    columns = [
        pa.array([b"k", None], pa.binary()), pa.array(["logs", None]), pa.array([0, None], pa.int32()),
        pa.array([7, None], pa.int64()), pa.array([1_700_000_000_000_000_000, None], pa.int64()).view(kind[4].type),
        pa.array([b"nonsense", None], pa.binary()), pa.array([["ts"], None], pa.list_(pa.string())),
    ]  # fmt: skip
    bad = pa.StructArray.from_arrays(columns, fields=list(kind), mask=pa.array([False, True]))

    keep = keeper({"bootstrap.servers": broker.bootstrap}, unique, "errors", TYPES, [])

    assert keep(bad).to_pylist() == [False, True]
    assert topics.contents(broker.bootstrap, unique) == [b"nonsense"]
