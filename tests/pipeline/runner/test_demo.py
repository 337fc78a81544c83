"""`clarion demo` with Spark: events to a rollup and to a table, counted to the last one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from clarion.cli.demo import spark as demo_spark
from clarion.cli.demo.spark import SparkPart
from clarion.cli.errors import CliError
from clarion.cli.link import Link
from tests.waiting import wait_for


@pytest.mark.spark
@pytest.mark.timeout(500)
def test_every_log_line_is_in_the_table_exactly_once(tmp_path):
    command = [sys.executable, "-m", "clarion.cli.main", "demo", "--seconds", "3", "--rate", "200"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CLARION_")}
    environment["TMPDIR"] = str(tmp_path)
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=480, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("✓ all there") == 5
    assert "archive (Delta table)" in done.stdout
    orders, lines = done.stdout.splitlines()[-2:]
    assert orders.startswith("every one of ")
    assert " log lines is in the Delta table exactly once; the rollup counted " in lines
    assert "requests   p50" in done.stdout, "a reader prints what the rollup writes"
    first = next(line for line in done.stdout.splitlines() if " published " in line)
    assert float(first.split("s")[0]) < 2.5, "the stream does not wait for Spark"
    assert not [each for each in Path(tmp_path).iterdir() if each.name.startswith("clarion-demo")]


RELUCTANT = """
import json, pathlib, sys, time
tries = pathlib.Path("tries")
number = len(tries.read_text()) if tries.exists() else 0
tries.write_text("x" * (number + 1))
good = int(sys.argv[1])
def report(name, state, rows, error=""):
    print(json.dumps({"pipeline": name, "state": state, "rows_in": rows, "last_error": error}), flush=True)
if number < good:
    if number % 2:
        sys.exit("clarion: Java was too slow")
    report("rollup", "running", 5)
    report("archive", "failed", 0, "Python worker failed to connect back")
    time.sleep(60)
report("rollup", "running", 7)
report("archive", "running", 12)
time.sleep(60)
"""


@pytest.fixture
def spark_part(tmp_path, broker):
    """The demo's part on Spark, with pipelines that fail as often as they are told to; and what it said."""
    parts: list[SparkPart] = []
    told: list[str] = []

    def make(failures: int) -> tuple[SparkPart, list[str]]:
        command = [sys.executable, "-c", RELUCTANT, str(failures)]
        parts.append(SparkPart(Link(broker.bootstrap, {}), tmp_path, 100.0, told.append, told.append, command))
        parts[-1].start()
        return parts[-1], told

    yield make
    for each in parts:
        each.stop()


def test_a_spark_that_fails_is_started_again_and_its_rows_are_added_up(spark_part):
    part, told = spark_part(2)
    wait_for(lambda: part.is_ready, seconds=30, what="the third try")
    assert told == [
        "Spark is started again: Python worker failed to connect back",
        "Spark is started again: Java was too slow",
        "Spark has joined: its pipelines begin with the first log line",
    ]
    assert part.progress == 5 + 7 + 12


def test_a_spark_that_keeps_failing_ends_the_demo_with_the_reason(spark_part):
    part, _ = spark_part(9)
    with pytest.raises(CliError, match=r"the pipelines failed: Python worker failed to connect back \(--no-spark"):
        wait_for(lambda: part.is_ready, seconds=30, what="an end")


@pytest.mark.parametrize(("open_windows", "is_done"), [(44, False), (1, True)])
def test_a_quiet_rollup_is_done_only_when_its_windows_are_closed(spark_part, monkeypatch, open_windows, is_done):
    """On a busy machine half a minute may pass between two batches; that is not the end."""
    monkeypatch.setattr(demo_spark, "_QUIET_SECONDS", -1.0)
    part, _ = spark_part(0)
    wait_for(lambda: part.is_ready, seconds=30, what="both run")
    part.reports["rollup"] = {**part.reports["rollup"], "state_rows": open_windows}
    part.publisher.acknowledged.see(range(5))
    assert part.has_everything == is_done


def test_an_archive_without_a_table_is_one_line(spark_part):
    part, _ = spark_part(0)
    with pytest.raises(CliError, match="the archive never wrote its table"):
        part.verdict()
