"""`clarion pipeline …` as it is typed: whole processes, their output, their exit status."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.conftest import Shell
from tests.pipeline.runner.test_runs import send
from tests.pipeline.topics import create
from tests.waiting import wait_for

CLARION = str(Path(sys.executable).with_name("clarion"))
SMALL = ["--master", "local[2,4]", "--conf", "spark.ui.enabled=false", "--conf", "spark.driver.memory=1g"]
SLOW = 240  # a busy machine takes a minute to start Spark

pytestmark = [pytest.mark.spark, pytest.mark.timeout(SLOW)]

LINES = """
from clarion.pipeline import pipeline, topic, table

@pipeline(reads=topic("spoken", json="line string"), writes=table("lake/lines"))
def lines(spoken):
    '''What was said.'''
    return spoken
"""


@pytest.fixture
def desk(tmp_path):
    (tmp_path / "lines.py").write_text(LINES)
    return Desk(tmp_path)


class Desk:
    """A folder, and a shell in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("CLARION_")}

    def __call__(self, *words: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            [CLARION, "pipeline", *words], cwd=self.folder, env=self.environment, capture_output=True, text=True,
            timeout=SLOW, stdin=subprocess.DEVNULL,
        )  # fmt: skip

    @contextmanager
    def begin(self, *words: str) -> Iterator[subprocess.Popen]:
        """Until it ends by itself; a test that fails meanwhile ends it."""
        with (
            (self.folder / "out").open("w") as out,
            (self.folder / "errors").open("w") as errors,
            subprocess.Popen(
                [CLARION, "pipeline", *words], cwd=self.folder, env=self.environment, stdout=out, stderr=errors
            ) as process,
        ):
            try:
                yield process
            except BaseException:
                process.terminate()
                raise

    def spark_pid(self, name: str) -> int | None:
        found = self.folder / "clarion-pipelines" / name / "spark.pid"
        return int(found.read_text().split()[0]) if found.exists() and found.read_text() else None

    def reports(self) -> list[dict]:
        return [json.loads(line) for line in (self.folder / "out").read_text().splitlines() if line.endswith("}")]

    def errors(self) -> str:
        return (self.folder / "errors").read_text()


@pytest.mark.timeout(3 * SLOW)
def test_a_stream_from_its_start_through_stop_and_restart_to_its_end(desk, broker):
    """Run as JSON with metrics, look at its status, stop it by name; run it again, stop it by Ctrl-C; start over."""
    create(broker.bootstrap, "spoken")
    send(broker.bootstrap, "spoken", [b'{"line": "one"}', b"mumble"])
    command = ["run", "lines.py", "--json", "-b", broker.bootstrap, "--metrics", "127.0.0.1:0", *SMALL]
    with desk.begin(*command) as first:
        wait_for(lambda: desk.reports() and desk.reports()[-1]["batch"] == 0, seconds=SLOW, what="the first batch")
        port = desk.errors().partition("http://127.0.0.1:")[2].partition("/")[0]
        metrics = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10).read().decode()
        assert 'clarion_pipeline_rows_quarantined_total{pipeline="lines"} 1.0' in metrics

        (status,) = json.loads(desk("status", "--json").stdout)
        assert (status["pipeline"], status["state"], status["pid"]) == ("lines", "running", first.pid)
        assert "already running" in desk(*command).stderr

        stopped = desk("stop", "lines")
        assert (stopped.returncode, stopped.stderr) == (0, "stopped lines\n")
        assert first.wait(SLOW) == 0
    last = desk.reports()[-1]
    assert (last["state"], last["rows_in"], last["rows_out"], last["quarantined"]) == ("stopped", 2, 1, 1)

    send(broker.bootstrap, "spoken", [b'{"line": "two"}'])
    with desk.begin(*command[:-6], *SMALL) as second:
        wait_for(lambda: desk.reports() and desk.reports()[-1]["batch"] == 1, seconds=SLOW, what="the second batch")
        second.send_signal(signal.SIGINT)
        assert second.wait(SLOW) == 0
    last = desk.reports()[-1]
    assert (last["state"], last["rows_in"], last["rows_out"], last["quarantined"]) == ("stopped", 1, 1, 0)
    assert "Traceback" not in desk.errors()

    assert "Forget where lines was?" in desk("reset", "lines", "-b", broker.bootstrap).stdout
    assert desk("reset", "lines", "--yes", "-b", broker.bootstrap).stderr == "lines begins anew with its next run\n"
    (status,) = json.loads(desk("status", "--json").stdout)
    assert (status["state"], status["pid"], status["rows_in"]) == ("new", None, 0)


@pytest.mark.campaign  # half a minute for one line; the demo meets a Spark that fails in every run
def test_a_spark_that_dies_is_told_in_one_line(desk, broker):
    create(broker.bootstrap, "unheard")
    (desk.folder / "lines.py").write_text(LINES.replace("spoken", "unheard"))
    with desk.begin("run", "lines.py", "--json", "-b", broker.bootstrap, *SMALL) as run:
        wait_for(lambda: desk.spark_pid("lines"), seconds=SLOW, what="Spark has started")
        os.kill(desk.spark_pid("lines"), signal.SIGKILL)
        assert run.wait(SLOW) == 1
    assert desk.errors() == "clarion: lines: Spark has died; spark.log may say of what\n"


def test_files_and_names_that_are_wrong_are_told_in_one_line(desk, monkeypatch):
    monkeypatch.chdir(desk.folder)
    (desk.folder / "broken.py").write_text("def f(:\n")
    for status, words, reason in (
        (1, ["run", "gone.py"], "gone.py: no such file"),
        (1, ["run", "broken.py"], "broken.py:1: invalid syntax"),
        (2, ["run", "lines.py", "--once", "--to", "latest"], "exclude each other"),
        (2, ["run", "lines.py", "--from", "soon"], "'soon' is not a time"),
        (2, ["run", "lines.py", "--to", "earliest"], "has no rows"),
        (2, ["run", "lines.py", "--from", "{1}"], "not JSON"),
        (2, ["run", "lines.py", "--only", "words"], "there is no such pipeline, only lines"),
        (2, ["run", "lines.py", "--conf", "spark.ui"], "write NAME=VALUE"),
        (2, ["run", "lines.py", "--metrics", "here"], "--metrics here"),
        (2, ["run", "lines.py", "--onec"], "No such option: --onec"),
        (2, ["run", "lines.py", "--master", "sc://host"], "Spark Connect, which cannot run pipelines"),
        (2, ["explain", "lines.py", "--master", "sc://host"], "Spark Connect, which cannot run pipelines"),
        (2, ["run", "lines.py", "--to", "latest", "--restart"], "--restart is for streams"),
        (2, ["run", "archive", "--topic"], "archive: --topic needs a value"),
        (2, ["run", "archive", "--topic", "spoken"], "archive: --table is missing"),
        (2, ["run", "latest", "--topic", "a", "--table", "t", "--fields"], "latest: --fields needs a value"),
        (1, ["stop", "lines"], "no pipeline lines has been run with clarion-pipelines (known: none)"),
        (1, ["reset", "lines", "--yes"], "no pipeline lines has been run"),
    ):
        done = Shell(None)("pipeline", *words)
        assert (done.status, done.out, done.err.count("\n")) == (status, "", 1), words
        assert reason in done.err


def test_list_shows_what_is_in_a_file_without_starting_spark(desk, monkeypatch):
    monkeypatch.chdir(desk.folder)
    (listed,) = json.loads(Shell(None)("pipeline", "list", "lines.py", "--json").out)
    assert listed == {
        "pipeline": "lines",
        "reads": "topic spoken",
        "writes": "table lake/lines",
        "mode": "append",
        "what": "What was said.",
    }
    assert Shell(None)("pipeline", "status").out == "no pipeline has been run with clarion-pipelines\n"


def test_explain_shows_the_plan_and_starts_nothing(desk):
    explained = desk("explain", "lines.py", "-b", "127.0.0.1:1", *SMALL)
    assert explained.returncode == 0, explained.stderr
    assert explained.stdout.startswith("lines: topic spoken → table lake/lines (append)\n")
    assert "Physical Plan" in explained.stdout
    assert not (desk.folder / "clarion-pipelines").exists()


def test_a_pipeline_may_use_functions_of_its_own_in_executors(desk, broker):
    """The file's own functions and those of its neighbours reach Spark's workers; and it may be called as it likes."""
    create(broker.bootstrap, "shouted")
    send(broker.bootstrap, "shouted", [b"hello"])
    (desk.folder / "voice.py").write_text("def loud(text):\n    return text.upper()\n")
    (desk.folder / "copy.py").write_text(
        textwrap.dedent(
            """
            from pyspark.sql.functions import udf
            from clarion.pipeline import pipeline, topic, table
            from voice import loud

            def louder(text):
                return loud(text) + "!"

            @pipeline(reads=topic("shouted", value="line"), writes=table("lake/shouts"))
            def shout(rows):
                return rows.select(udf(louder, "string")("line").alias("line"))
            """
        )
    )
    done = desk("run", "copy.py", "--to", "latest", "-b", broker.bootstrap, *SMALL)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "shout: ended, 1 in (0/s), 1 out (0/s)"
