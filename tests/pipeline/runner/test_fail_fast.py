"""What cannot work is said at once, in one line, before Spark takes half a minute to start."""

import subprocess
import sys
from pathlib import Path

import pytest

from clarion.pipeline import DefinitionError, archive, pipeline, replay, table, topic
from clarion.pipeline.broker_link import BrokerAwayError, BrokerLink
from clarion.pipeline.definition import ONCE, Plan
from clarion.pipeline.field_list import why_no_fields
from clarion.pipeline.ready.registry import from_words
from clarion.pipeline.runner import Runner
from tests.pipeline.topics import create

NOBODY = "127.0.0.1:1"


def refused(tmp_path: Path, bootstrap: str, *pipelines) -> list[str]:
    """Why each pipeline failed, in a run that must not ask for Spark."""

    def no_spark(config):
        raise AssertionError("Spark was started")

    state = tmp_path / "state"
    runner = Runner(pipelines, Plan(bootstrap, ONCE, state_dir=state, must_wait=False), lambda progresses: None)
    assert not runner.run(no_spark)
    assert not state.exists(), "something was left behind"
    assert [each.state for each in runner.progresses] == ["failed"] * len(pipelines)
    return [each.last_error for each in runner.progresses]


def copying(**parts):
    return pipeline(**{"reads": topic("a"), "writes": topic("b"), "name": "copy", **parts})(lambda *rows: rows[0])


def test_a_broker_that_is_away(tmp_path):
    (reason,) = refused(tmp_path, NOBODY, copying())
    assert NOBODY in reason
    assert "\n" not in reason


def test_where_nobody_listens_the_first_refusal_is_the_answer():
    """Whoever may wait asks again; trying on inside for two seconds would only hide why."""
    with pytest.raises(BrokerAwayError, match=rf"^nothing answers at {NOBODY}; .* \(\[Errno 111\] .*\)$"):
        BrokerLink({"bootstrap.servers": NOBODY}).topics()


def test_a_stop_while_spark_starts_is_no_failure(tmp_path):
    """Who stops a whole group of processes stops the JVM too, in the middle of its start."""

    def torn_off(config):
        runner.stop()
        raise ConnectionRefusedError("the JVM has gone")

    runner = Runner([copying()], Plan(NOBODY, state_dir=tmp_path / "state"), lambda progresses: None)
    assert runner.run(torn_off)
    assert [each.state for each in runner.progresses] == ["stopped"]


def test_a_spark_that_does_not_start_is_a_failure(tmp_path):
    def refused_spark(config):
        raise ConnectionRefusedError("the JVM has gone")

    runner = Runner([copying()], Plan(NOBODY, state_dir=tmp_path / "state"), lambda progresses: None)
    with pytest.raises(ConnectionRefusedError):
        runner.run(refused_spark)


LOADED = """
import atexit, sys
atexit.register(lambda: print([each for each in ("numpy", "pyspark", "prometheus_client") if each in sys.modules]))
"""


def test_what_can_be_refused_at_once_is_refused_without_the_weight_of_spark(tmp_path):
    """Numpy, pyarrow and PySpark take most of a second to import, of the two that an answer may take."""
    words = ["archive", "--topic", "t", "--table", str(tmp_path / "t"), "--once", "--state-dir", str(tmp_path / "s")]
    done = command("pipeline", "run", *words, "-b", NOBODY, before=f"exec({LOADED!r})")
    assert (done.returncode, done.stdout) == (1, "[]\n")
    assert list(tmp_path.iterdir()) == [], "something was left behind"


def test_a_table_that_does_not_exist_is_found_missing_without_delta_rs(tmp_path, broker, unique):
    create(broker.bootstrap, unique)
    loaded = LOADED.replace('"numpy"', '"deltalake"')
    words = ["replay", "--table", str(tmp_path / "nowhere"), "--to-topic", unique, "--once"]
    done = command("pipeline", "run", *words, "-b", broker.bootstrap, before=f"exec({loaded!r})")
    assert (done.returncode, done.stdout) == (1, "[]\n"), done.stderr
    assert done.stderr.strip().endswith(f"there is no table at {tmp_path / 'nowhere'}")


def test_a_topic_that_does_not_exist(tmp_path, broker, unique):
    reads = topic(unique, json="a int", quarantine=f"{unique}-bad")
    assert refused(tmp_path, broker.bootstrap, copying(reads=reads)) == [
        f"topic {unique} does not exist at {broker.bootstrap}"
    ]
    assert f"{unique}-bad" not in BrokerLink({"bootstrap.servers": broker.bootstrap}).topics()


def test_an_option_that_the_connector_does_not_have(tmp_path, broker, unique):
    create(broker.bootstrap, unique)
    misspelt = topic(unique, json="a int", quarantine=f"{unique}-bad", options={"maxOfsetsPerTrigger": 5})
    (reason,) = refused(tmp_path, broker.bootstrap, copying(reads=misspelt))
    assert reason == f"topic {unique}: unknown option maxOfsetsPerTrigger; did you mean maxOffsetsPerTrigger?"
    assert f"{unique}-bad" not in BrokerLink({"bootstrap.servers": broker.bootstrap}).topics()


def test_a_table_that_does_not_exist(tmp_path, broker, unique):
    create(broker.bootstrap, unique)
    lookup = copying(reads=[topic(unique), table(str(tmp_path / "nowhere"))])
    again = replay(str(tmp_path / "nowhere"), unique)
    assert refused(tmp_path, broker.bootstrap, lookup, again) == [f"there is no table at {tmp_path / 'nowhere'}"] * 2


@pytest.mark.parametrize(
    ("ddl", "reason"),
    [
        ("a strng", "there is no type strng; did you mean string"),
        ("a", "'a' has no type"),
        ("a int, b", "'b' has no type"),
        ("a array<string", "brackets do not match"),
        ("a map<string, int)>", "brackets do not match"),
        ("", "it is empty"),
        ("a int int", "int follows a type"),
        ("a array<strng>", "there is no type strng; did you mean string"),
        ("a map<string, struct<b: int, c: lng>>", "there is no type lng; did you mean long"),
        ("a map<string>, b int", "write map<TYPE, TYPE>"),
        ("a map<string,>", "a type is missing"),
        ("a int, a string", "two fields are called a"),
    ],
)
def test_fields_that_spark_would_not_understand(ddl, reason):
    for define in (lambda: topic("t", json=ddl), lambda: archive("t", "lake/t", json=ddl)):
        with pytest.raises(DefinitionError, match=reason):
            define()


@pytest.mark.parametrize(
    "ddl",
    [
        "ts timestamp not null, level string",
        "`a, b` decimal(10, 2), c array<struct<d: int, e map<string, long>>>",
        "a: int, b STRING COMMENT 'x, y', c-d varchar(3)",
        "i interval day to second, v variant",
        "a timestamp without time zone, s struct<>, t string collate utf8_lcase, d int default 3",
    ],
)
def test_fields_that_spark_understands_pass(ddl):
    assert why_no_fields(ddl) is None


def command(*words: str, before: str = "pass") -> subprocess.CompletedProcess:
    code = f"import sys; {before}; from clarion.cli.main import main; main(sys.argv[1:])"
    return subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    "words",
    [
        ["archive", "--topic", "events"],
        ["archive", "--topic", "events", "--table", "t", "--fields", "a strng"],
        ["--colour", "blue"],
        ["nothing.py", "--once", "--to", "latest"],
        ["archive", "--topic", "events", "--table", "t", "--metrics", "here"],
        ["archive", "--topic", "events", "--table", "t", "--compact-every", "-5"],
        ["replay", "--table", "t", "--to-topic", "events", "--from", "-1h"],
        ["replay", "--table", "t", "--to-topic", "events", "--to", "-1h"],
        ["archive", "--topic", "events", "--table", "t", "--from", "latest", "--to", "latest"],
        ["archive", "--topic", "events", "--table", "t", "--to", '{"events": {"0": -2}}'],
        ["archive", "--topic", "events", "--table", "t", "--from", '{"events": {"0": "first"}}'],
        ["archive", "--topic", "events", "--table", "t", "--from", '{"events": {"0": -3}}'],
    ],
)
def test_wrong_words_end_with_status_2_in_one_line(words, tmp_path):
    done = command("pipeline", "run", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            ["archve", "--topic", "a", "--table", "t"],
            "archve is neither a file nor a ready-made pipeline (did you mean archive?)",
        ),
        (["nothing"], "nothing is neither a file nor a ready-made pipeline (archive, replay, rollup, latest)"),
        (
            ["latest", "--topic", "a", "--table", "t", "--from", "yesterday"],
            "--from: 'yesterday' is not a time; write for example -5m",
        ),
    ],
)
def test_a_word_that_is_misspelt_is_the_one_that_is_named(words, told, tmp_path):
    done = command("pipeline", "run", *words)
    assert done.returncode == 2
    assert told in done.stderr


@pytest.mark.parametrize("name", ["archive", "latest"])
def test_wrong_fields_are_refused_by_the_name_of_the_option(name):
    """`json=` is what a Python file says; `--json` asks for reports."""
    with pytest.raises(DefinitionError) as refused:
        from_words(name, ["--topic", "events", "--table", "t", "--fields", "a strng"])
    assert str(refused.value) == f"{name}: --fields a strng: there is no type strng; did you mean string?"


@pytest.mark.parametrize(("how", "status"), [(["--to", "latest"], 1), (["--once"], 0), ([], 0)])
def test_a_batch_that_was_stopped_is_not_done(how, status):
    """Whoever waits for it (cron, a scheduler) must not take it for whole; a stream goes on with the next run."""
    stopped = "import clarion.cli.pipeline as cli; cli.perform = lambda *_, **__: False"
    done = command("pipeline", "run", "archive", "--topic", "a", "--table", "t", *how, before=stopped)
    assert (done.returncode, done.stdout) == (status, "")
    assert ("stopped before it was through" in done.stderr) == bool(status)


def test_a_broker_that_is_away_is_one_line_and_status_1(tmp_path):
    words = ["archive", "--topic", "t", "--table", str(tmp_path / "t"), "--once", "--state-dir", str(tmp_path / "s")]
    done = command("pipeline", "run", *words, "-b", NOBODY)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert NOBODY in done.stderr
    assert not (tmp_path / "t").exists()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("archive", ["--table TABLE", "--fields FIELDS", "--[no-]keep-value", "default: 30"]),
        ("replay", ["--to-topic TO-TOPIC", "--rate RATE"]),
        ("rollup", ["--quantiles QUANTILES"]),
        ("latest", ["--topic TOPIC"]),
    ],
)
def test_help_shows_the_options_of_a_ready_made_pipeline(name, words):
    done = command("pipeline", "run", name, "--help")
    assert done.returncode == 0
    assert [word for word in words if word not in done.stdout] == []


def test_help_of_run_itself():
    done = command("pipeline", "run", "--help")
    assert done.returncode == 0
    assert "--state-dir" in done.stdout


@pytest.mark.parametrize("words", [["list", "x.py"], ["run", "x.py"], ["explain", "x.py"]])
def test_without_spark_it_says_how_to_get_it(words):
    done = command("pipeline", *words, before="sys.modules['pyspark'] = None")
    assert done.returncode == 1
    assert "pip install 'clarion-broker[spark]'" in done.stderr
    assert "Traceback" not in done.stderr
