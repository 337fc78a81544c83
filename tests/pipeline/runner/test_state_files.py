"""A pipeline's folder: one process at a time, a status that is whole, a reset that forgets."""

import errno
import json
import subprocess
import sys
from pathlib import Path

import pytest

from clarion.pipeline import pipeline, topic
from clarion.pipeline.definition import BATCH, STREAM, Plan
from clarion.pipeline.runner import PipelineRun
from clarion.pipeline.state_files import CheckpointAwayError, PipelineRunningError, StateFolder, state_folders
from tests.pipeline.runner.test_runs import send
from tests.pipeline.topics import create
from tests.waiting import wait_for

NOBODY = "127.0.0.1:1"
HOLDER = """
import sys
from pathlib import Path
from clarion.pipeline.state_files import StateFolder

with StateFolder(Path(sys.argv[1]), "one").held():
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def folder(tmp_path):
    return StateFolder(tmp_path, "one")


def test_a_pipeline_runs_in_one_process_at_a_time(folder, tmp_path):
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "held\n"
        assert folder.pid() == other.pid
        with pytest.raises(PipelineRunningError, match=f"already running .process {other.pid}."), folder.held():
            pass
        with pytest.raises(PipelineRunningError):
            folder.reset()
        other.kill()
    assert folder.pid() is None, "a killed process holds nothing"
    with folder.held():
        assert [each.name for each in state_folders(tmp_path)] == ["one"]


def test_an_old_wish_to_stop_does_not_stop_the_next_run(folder):
    folder.path.mkdir()
    folder.request_stop()
    with folder.held():
        assert not folder.is_stop_requested
        folder.request_stop()
        assert folder.is_stop_requested


def test_a_status_is_read_as_it_was_written_and_leaves_nothing_aside(folder):
    assert folder.read_status() == {}
    folder.path.mkdir()
    for number in range(3):
        folder.write_status({"state": "running", "number": number})
    assert folder.read_status() == {"state": "running", "number": 2}
    assert [each.name for each in folder.path.iterdir()] == ["status.json"]


def full(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_leaves_the_old_status_and_the_pipeline_alone(folder, monkeypatch):
    folder.path.mkdir()
    folder.write_status({"number": 1})

    monkeypatch.setattr(json, "dump", full)
    folder.write_status({"number": 2})
    monkeypatch.setattr(Path, "open", full)
    folder.note(ValueError("whatever"))
    monkeypatch.undo()
    assert folder.read_status() == {"number": 1}
    assert [each.name for each in folder.path.iterdir()] == ["status.json"]


def test_a_batch_is_in_flight_between_its_plan_and_its_commit(folder):
    for log in ("offsets", "commits"):
        (folder.checkpoint / log).mkdir(parents=True)
        (folder.checkpoint / log / ".9.crc").touch()
    assert (folder.has_checkpoint, folder.in_flight()) == (False, None)
    for name in ("9", "10"):
        (folder.checkpoint / "offsets" / name).touch()
    (folder.checkpoint / "commits" / "9").touch()
    assert (folder.has_checkpoint, folder.in_flight()) == (True, 10)
    (folder.checkpoint / "commits" / "10").touch()
    assert folder.in_flight() is None
    assert folder.has_committed(10)


def test_a_reset_forgets_the_checkpoint_and_the_status(folder):
    (folder.checkpoint / "offsets").mkdir(parents=True)
    (folder.checkpoint / "offsets" / "0").touch()
    folder.write_status({"state": "stopped"})
    folder.reset()
    assert not folder.has_checkpoint
    assert folder.read_status() == {}


def test_the_spark_of_a_killed_run_is_seen_until_it_is_gone(folder, tmp_path, monkeypatch):
    java = tmp_path / "java"
    java.symlink_to("/bin/sleep")
    folder.path.mkdir()
    assert folder.spark() is None
    with subprocess.Popen([java, "60"]) as other:
        folder.note_spark(other.pid)
        wait_for(lambda: folder.spark() == other.pid)
        with monkeypatch.context() as patched:
            patched.setattr(Path, "write_text", full)
            folder.note_spark(other.pid)  # as a restart of the pipeline in the same Spark does
        assert folder.spark() == other.pid
        # Another Java that has got the number of one that is gone, after a restart of the machine or the container.
        pid_file = folder.path / "spark.pid"
        pid_file.write_text(f"{other.pid} 1")
        assert folder.spark() is None
        pid_file.write_text(str(other.pid))
        assert folder.spark() == other.pid, "as earlier versions wrote it"
        other.kill()
    assert folder.spark() is None


def test_a_folder_of_other_things_is_no_pipeline(tmp_path):
    (tmp_path / "other").mkdir()
    assert state_folders(tmp_path) == []
    assert state_folders(tmp_path / "gone") == []


def test_a_batch_does_not_make_a_streams_checkpoint_forgotten(tmp_path):
    """It has none itself, and `reset` looks where the last status says."""
    copy = pipeline(reads=topic("a"), writes=topic("b"), name="copy")(lambda rows: rows)
    stream, batch = (
        PipelineRun(copy, Plan(NOBODY, how, state_dir=tmp_path / "state", checkpoints=place))
        for how, place in ((STREAM, str(tmp_path / "shared")), (BATCH, None))
    )
    offsets = tmp_path / "shared" / "copy" / "offsets"
    offsets.mkdir(parents=True)
    stream._begun_at = 1.0
    for each in (stream, batch):
        with each.folder.held():
            each.write_status()

    StateFolder(tmp_path / "state", "copy").reset()

    assert not offsets.exists()


def test_a_stream_whose_checkpoint_is_elsewhere_does_not_begin_anew_without_a_word(tmp_path):
    """Once without `--checkpoints`, and a pipeline would write all of its topic again."""
    state, shared = tmp_path / "state", tmp_path / "shared"
    before = StateFolder(state, "errors", str(shared))
    with before.held():
        before.write_status({"checkpoint": before.checkpoint_uri})
    now = StateFolder(state, "errors")
    assert now.why_not_begin(elsewhere=False) is None, "nothing has begun there"

    (shared / "errors" / "offsets").mkdir(parents=True)
    (shared / "errors" / "offsets" / "0").touch()

    assert f"has its checkpoint at {shared}/errors" in now.why_not_begin(elsewhere=False)
    assert StateFolder(state, "errors", f"file://{shared}").why_not_begin(elsewhere=False) is None
    assert "has begun" in StateFolder(state, "errors", f"{shared}/").why_not_begin(elsewhere=True)
    now.reset()
    assert now.why_not_begin(elsewhere=True) is None


@pytest.mark.parametrize("spelling", ["{}", "file://{}", "file:{}"])
def test_a_checkpoint_elsewhere_is_known_and_forgotten_too(tmp_path, spelling):
    place = tmp_path / "shared"
    folder = StateFolder(tmp_path / "state", "errors", spelling.format(place))
    assert not folder.has_checkpoint
    for log, batches in (("offsets", "012"), ("commits", "01")):
        (place / "errors" / log).mkdir(parents=True)
        for batch in batches:
            (place / "errors" / log / batch).touch()
    assert folder.has_checkpoint
    assert folder.in_flight() == 2
    assert folder.has_committed(1)
    with folder.held():
        folder.write_status({"checkpoint": folder.checkpoint_uri})
    StateFolder(tmp_path / "state", "errors").reset()  # `reset` is not told where; the last run said it
    assert not folder.has_checkpoint


ODD = "my wörk #1, 100%41?"


def test_spark_keeps_a_checkpoint_where_it_is_looked_for_whatever_the_folder_is_called(spark, tmp_path):
    folder = StateFolder(tmp_path / ODD, "one")
    (tmp_path / "lines").mkdir()
    (tmp_path / "lines" / "some.txt").write_text("a\nb\n")
    writer = spark.readStream.text(str(tmp_path / "lines")).writeStream.format("noop").trigger(availableNow=True)
    assert writer.option("checkpointLocation", folder.checkpoint_uri).start().awaitTermination(120)
    assert folder.has_checkpoint
    folder.reset()
    assert not folder.has_checkpoint
    assert sorted(each.name for each in tmp_path.iterdir()) == ["lines", ODD]


def test_a_checkpoint_under_a_percent_encoded_name_goes_on_there(tmp_path):
    """Where earlier versions had it kept."""
    former = tmp_path / "my%20work" / "one" / "checkpoint" / "offsets"
    former.mkdir(parents=True)
    (former / "0").touch()
    folder = StateFolder(tmp_path / "my work", "one")
    assert folder.has_checkpoint
    assert folder.checkpoint_uri == f"file://{former.parent}"
    with folder.held():
        folder.write_status({"checkpoint": folder.checkpoint_uri})
    folder.reset()
    assert not former.exists()
    assert folder.checkpoint_uri == f"file://{tmp_path}/my work/one/checkpoint"


def test_a_checkpoint_of_another_file_system_is_known_and_forgotten_through_spark(stage):
    shared = stage.folder / "shared"
    shared.mkdir()
    hadoop = stage.spark.sparkContext._jsc.hadoopConfiguration()
    hadoop.set("fs.viewfs.mounttable.far.link./shared", shared.as_uri())
    create(stage.bootstrap, "near", 1)
    path = stage.file(
        """
        from clarion.pipeline import pipeline, topic

        @pipeline(reads=topic("near"), writes=topic("nearer"))
        def near(rows):
            return rows
        """
    )
    send(stage.bootstrap, "near", [b"one"])
    far = {"checkpoints": "viewfs://far/shared"}
    assert [each.state for each in stage.play(path, **far).progresses] == ["ended"]
    assert (shared / "near" / "commits" / "0").exists()
    (again,) = stage.play(path, starting={"startingOffsets": "latest"}, **far).progresses
    assert (again.state, again.last_error.partition(";")[0]) == ("failed", HAS_BEGUN)

    folder = StateFolder(stage.folder / "state", "near")
    assert folder.is_far, "the last run said where"
    with pytest.raises(CheckpointAwayError, match="only Spark"):
        folder.reset()
    folder.look_through(stage.spark)
    folder.reset()
    assert not (shared / "near").exists()


HAS_BEGUN = "pipeline near has begun and goes on where it was"


def test_a_place_that_spark_cannot_reach_is_told_in_one_line(spark, tmp_path):
    folder = StateFolder(tmp_path, "errors", "nfs://nowhere/x")
    folder.look_through(spark)
    with pytest.raises(CheckpointAwayError, match=r'^nfs://nowhere/x/.*: Spark cannot.* scheme "nfs"$'):
        _ = folder.has_checkpoint
