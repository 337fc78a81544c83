"""Spark's reports as a few numbers, for people, programs and Prometheus."""

import io
import json
import sys
import threading
import urllib.request
from datetime import UTC, datetime

import pytest

from clarion.pipeline.metrics import COUNTERS, GAUGES, served
from clarion.pipeline.progress import PartitionLag, PipelineProgress, lag_of, read_report
from clarion.pipeline.reasons import plain_reason
from clarion.pipeline.view import JsonLines, Lines, card, facts, line

REPORT = {
    "name": "errors_per_minute",
    "batchId": 7,
    "numInputRows": 1000,
    "durationMs": {"triggerExecution": 120, "addBatch": 80},
    "eventTime": {"watermark": "2026-11-15T10:00:00.000Z"},
    "stateOperators": [{"numRowsTotal": 40, "memoryUsedBytes": 2_000_000}, {"numRowsTotal": 2, "memoryUsedBytes": 100}],
    "sources": [{"endOffset": '{"logs": {"0": 5, "1": 7}}', "latestOffset": '{"logs": {"0": 9, "1": 7, "2": 3}}'}],
    "observedMetrics": {"clarion_rows_out_3": {"count": 12}, "clarion_bad_rows_1": {"count": 2}, "mine": {"x": 9}},
}


def progress_of(*reports):
    one = PipelineProgress("errors_per_minute", "running")
    for moment, report in enumerate(reports):
        one.add(read_report(report), float(moment))
    return one


def test_a_report_becomes_a_reading():
    reading = read_report(REPORT)
    assert (reading.batch_id, reading.rows_in, reading.rows_out, reading.rows_bad) == (7, 1000, 12, 2)
    assert (reading.batch_ms, reading.watermark) == (120, "2026-11-15T10:00:00.000Z")
    assert (reading.state_rows, reading.state_bytes) == (42, 2_000_100)
    assert reading.lag == 4 + 3, "a partition that is new has not been read at all"


def test_a_report_that_says_little_is_no_problem():
    reading = read_report({"batchId": 0})
    assert (reading.rows_in, reading.lag, reading.watermark, reading.state_bytes) == (0, None, None, 0)
    assert read_report({"eventTime": {"watermark": "1970-01-01T00:00:00.000Z"}}).watermark is None
    assert read_report({"numInputRows": -1}).rows_in == 0


def test_lag_is_the_sum_over_all_sources_that_tell_it():
    ahead = {"endOffset": {"a": {"0": 1}}, "latestOffset": {"a": {"0": 4}}}
    assert lag_of([ahead, {"endOffset": None, "latestOffset": None}, ahead]) == 6
    assert lag_of([{"endOffset": "rate", "latestOffset": None}]) is None


def test_readings_add_up_and_the_rate_is_that_of_the_last_seconds():
    one = progress_of(REPORT, {**REPORT, "batchId": 8})
    assert (one.rows_in, one.rows_out, one.rows_bad, one.batches) == (2000, 24, 4, 2)
    assert one.rates(5.0) == (200.0, 2.4)
    assert one.rates(60.0) == (0.0, 0.0)


def test_reports_may_come_while_somebody_asks_for_the_rate():
    """They come in a thread of Spark's, and an error in the asking one would end the run."""
    progress, reading = PipelineProgress("p"), read_report(REPORT)
    adding = threading.Thread(target=lambda: [progress.add(reading, number / 100) for number in range(30_000)])
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        adding.start()
        while adding.is_alive():
            progress.rates(0.0)
    finally:
        sys.setswitchinterval(before)
        adding.join()
    assert progress.rates(300.0)[0] == pytest.approx(100_000, rel=0.01)


def test_an_idle_trigger_means_that_everything_has_been_read():
    one = progress_of(REPORT)
    assert one.lag == 7
    one.idle()
    assert one.lag == 0


def test_a_pipe_gets_a_line_at_every_change_of_state_and_no_more():
    out = io.StringIO()
    say = Lines(out)
    one = PipelineProgress("errors_per_minute", "waiting", "nothing answers at 127.0.0.1:9092")
    say([one])
    say([one])
    one.state, one.detail = "running", ""
    say([one])
    assert out.getvalue().splitlines() == [
        "errors_per_minute: waiting: nothing answers at 127.0.0.1:9092",
        "errors_per_minute: running",
    ]


def test_a_failure_that_ends_the_command_is_left_to_the_command():
    out = io.StringIO()
    say = Lines(out)
    failed, other = PipelineProgress("a", "failed", "no such topic"), PipelineProgress("b", "running")
    say([failed, other])
    other.state = "failed"
    say([failed, other])
    assert out.getvalue().splitlines() == ["a: failed: no such topic", "b: running"]
    say = Lines(out := io.StringIO())
    say([failed])
    assert out.getvalue() == ""


def test_a_line_tells_the_whole_story():
    assert line(progress_of(REPORT).as_json(0.0)) == (
        "errors_per_minute: running, 1,000 in (100/s), 12 out (1/s), lag 7 messages, batch 7 in 120 ms, "
        "watermark 2026-11-15 10:00:00, state 42 rows, 2.0 MB, 2 bad"
    )


def test_a_program_gets_one_json_object_per_report():
    out = io.StringIO()
    say = JsonLines(out, clock=lambda: datetime(2026, 11, 15, tzinfo=UTC))
    one = progress_of(REPORT)
    say([one])
    say([one])
    one.add(read_report({**REPORT, "batchId": 8}), 1.0)
    say([one])
    first, second = map(json.loads, out.getvalue().splitlines())
    assert (first["at"], first["batch"], second["batch"]) == ("2026-11-15T00:00:00.000Z", 7, 8)
    assert (first["lag"], first["quarantined"], second["rows_in"]) == (7, 2, 2000)


def behind(**more):
    one = progress_of({**REPORT, "timestamp": "2026-11-15T10:00:00.000Z"})
    one.tables = ("lake/errors_per_minute",)
    one.tell_lag([PartitionLag("logs", 0, 800, 96_000, 3.4), PartitionLag("logs", 1, 400, 48_000, 90.0)])
    for name, value in more.items():
        setattr(one, name, value)
    return one


def test_a_card_says_what_there_is_to_say_and_no_more():
    assert facts(behind(rows_late=3, detail="waits").as_json(0.0)) == [
        ("rows", "1,000 in (100/s) · 12 out (1/s) · 2 bad · 3 late"),
        ("lag", "1,200 messages, 144.0 KB, 90.0 s; most in logs-0 (800)"),
        ("batch", "7 in 120 ms · watermark 2026-11-15 10:00:00 · state 42 rows, 2.0 MB"),
        ("table", "lake/errors_per_minute · 90.0 s behind · written 2026-11-15 10:00:00Z"),
        ("note", "waits"),
    ]
    assert facts(PipelineProgress("new").as_json(0.0)) == [("rows", "0 in (0/s) · 0 out (0/s)"), ("lag", "not known")]


def test_a_failure_is_told_once():
    failed = PipelineProgress("errors", "failed", "no such column", last_error="no such column").as_json(0.0)
    again = PipelineProgress("errors", "restarting", "in 1 s: no broker", last_error="no broker").as_json(0.0)
    well = PipelineProgress("errors", "running", last_error="no broker").as_json(0.0)
    assert [facts(each)[2:] for each in (failed, again, well)] == [
        [("error", "no such column")],
        [("note", "in 1 s: no broker")],
        [("error", "no broker")],
    ]


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_cards_fit_into_the_terminal_and_lose_nothing(columns, monkeypatch):
    from rich.console import Console

    monkeypatch.setenv("COLUMNS", str(columns))
    console = Console(file=io.StringIO(), width=columns)
    console.print(card(behind(last_error="x" * 150).as_json(0.0)))
    drawn = console.file.getvalue()
    assert max(map(len, drawn.splitlines())) == min(columns, 100)
    assert drawn.count("x") == 150
    assert "errors_per_minute · running" in drawn


def test_lag_is_told_in_messages_bytes_and_seconds_per_partition_and_table():
    told = behind().as_json(0.0)
    assert (told["lag"], told["lag_bytes"], told["lag_seconds"]) == (1200, 144_000, 90.0)
    assert told["partitions"][0] == {"topic": "logs", "partition": 0, "messages": 800, "bytes": 96_000, "seconds": 3.4}
    (table,) = told["tables"]
    assert (table["table"], table["behind_seconds"]) == ("lake/errors_per_minute", 90.0)
    assert table["written_ms"] == datetime(2026, 11, 15, 10, tzinfo=UTC).timestamp() * 1000 + 120


def test_a_broker_that_does_not_answer_leaves_the_lag_unknown():
    one = behind()
    one.tell_lag(None)
    assert (one.lag, one.lag_bytes, one.lag_seconds) == (None, None, None)


def test_prometheus_gets_every_number():
    with served(("127.0.0.1", 0), [behind(), PipelineProgress("new")]) as port:
        text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5).read().decode()
    label = '{pipeline="errors_per_minute"}'
    assert f"clarion_pipeline_rows_read_total{label} 1000.0" in text
    assert f"clarion_pipeline_lag_messages{label} 1200.0" in text
    place = '{partition="1",pipeline="errors_per_minute",topic="logs"}'
    for unit, value in (("messages", 400), ("bytes", 48_000), ("seconds", 90)):
        assert f"clarion_pipeline_partition_lag_{unit}{place} {float(value)}" in text
    table = '{pipeline="errors_per_minute",table="lake/errors_per_minute"}'
    assert f"clarion_pipeline_table_behind_seconds{table} 90.0" in text
    assert f"clarion_pipeline_table_written_timestamp_seconds{table} 1.79473680012e+09" in text
    assert f"clarion_pipeline_batch_duration_seconds{label} 0.12" in text
    assert f"clarion_pipeline_watermark_timestamp_seconds{label} 1.7947368e+09" in text
    assert 'clarion_pipeline_up{pipeline="new"} 0.0' in text
    for name in (*(f"{each}_total" for each in COUNTERS), *GAUGES):
        assert f"clarion_pipeline_{name}{label}" in text


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (
            "[STREAM_FAILED] Query [id = x, runId = y] terminated with exception: An exception was raised by the "
            'Python Proxy. Return Message: Traceback (most recent call last):\n  File "a.py", line 1, in call\n'
            "    raise ValueError('no such column')\nValueError: no such column\n SQLSTATE: XXKST\n=== Streaming",
            "ValueError: no such column",
        ),
        (
            "Job aborted: org.apache.spark.api.python.PythonException: Traceback (most recent call last):\n"
            "clarion.pipeline.kafka.errors.DataLossError: logs-0: offsets 3 to 9 are gone\n\n\tat org.apache.X(Y)",
            "DataLossError: logs-0: offsets 3 to 9 are gone",
        ),
        (
            "[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column with name `x` cannot be resolved. SQLSTATE: 42703;\nProject",
            "A column with name `x` cannot be resolved.;",
        ),
        (
            "An error occurred while calling o132.save.\n: org.apache.spark.SparkException: [FULL] No room left.\n"
            "\tat org.apache.spark.Something(X.scala:1)",
            "No room left.",
        ),
        ("", "RuntimeError"),
    ],
)
def test_a_page_of_spark_becomes_one_line(said, reason):
    assert plain_reason(RuntimeError(said)) == reason


def test_rows_that_came_too_late_are_counted():
    progress = PipelineProgress("p")
    for _ in range(2):
        operators = [{"numRowsDroppedByWatermark": 3}, {"numRowsDroppedByWatermark": 1}]
        progress.add(read_report({"batchId": 1, "stateOperators": operators}), 0.0)
    assert progress.as_json(0.0)["late"] == 8


def test_lag_is_unknown_and_not_nought_while_a_batch_waits_to_become_larger():
    for waits, lag in ((False, 0), (True, None)):
        progress = PipelineProgress("p", may_wait_for_more=waits)
        sources = [{"endOffset": {"t": {"0": 5}}, "latestOffset": {"t": {"0": 9}}}]
        progress.add(read_report({"batchId": 1, "sources": sources}), 0.0)
        assert progress.lag == 4
        progress.idle()
        assert progress.lag == lag
