"""Processes of Spark that die: workers, executors, and the driver at the worst possible moment."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from clarion.pipeline.definition import Pipeline
from tests.pipeline.faults.processes import executors_of, jvm_of, kill, process_tree, stopped, task_workers
from tests.pipeline.faults.scene import IN_BOTH, SOURCE, TARGET, Scene, last_commit, last_plan, query_id
from tests.waiting import wait_for

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

DRIVER_SECONDS_MAX = 400  # a busy machine takes minutes to start a driver and its first batches
FILE = """
from clarion.pipeline import archive, pipeline, topic

options = {{"maxOffsetsPerTrigger": "200", "request.timeout.ms": "1000"}}
archiving = archive("{source}", "{lake}", name="archiving", trigger=None, options=options)

@pipeline(reads=topic("{source}", options=options), writes=topic("{target}"))
def copying(rows):
    return rows
"""


def test_python_workers_that_are_killed_under_their_tasks(scene: Scene) -> None:
    """A topic may get a task's messages twice, a table never."""
    values = scene.fill(3000)
    copying, archiving = scene.copying(), scene.archiving()
    with scene.playing(copying, archiving):
        for _ in range(3):
            scene.wait_for_batches(copying, 2)
            scene.wait_for_batches(archiving, 2)
            workers = task_workers(os.getpid())
            assert workers
            kill(*workers)
        scene.wait_until_read(copying, len(values))
        scene.wait_until_read(archiving, len(values))
    assert set(scene.copied()) == set(values)
    assert scene.archived() == values


def test_a_driver_killed_between_the_tables_commit_and_the_checkpoints(scene: Scene, tmp_path: Path) -> None:
    values = scene.fill(4000)
    killed = kill_between_the_commits(scene, tmp_path)
    assert len(scene.archived()) < len(values)
    assert last_commit(scene.checkpoint(scene.archiving())) < killed
    scene.run_well(scene.archiving())
    assert scene.archived() == values


@pytest.mark.campaign
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("turn", range(3))
def test_a_driver_killed_between_the_commits_again(scene: Scene, tmp_path: Path, turn: int) -> None:
    values = scene.fill(6000)
    for _ in range(2):
        kill_between_the_commits(scene, tmp_path)
    scene.run_well(scene.archiving())
    assert scene.archived() == values


@pytest.mark.campaign
@pytest.mark.timeout(1800)
@IN_BOTH
def test_a_driver_killed_at_any_moment(scene: Scene, tmp_path: Path) -> None:
    """Of a copy nothing is lost, and what is doubled is the batch in flight at each death."""
    values = scene.fill(20_000)
    copying, archiving = scene.copying(), scene.archiving()
    deaths = 4
    for turn in range(deaths):
        with driver(scene, tmp_path) as process:
            seen = last_commit(scene.checkpoint(copying))
            wait_for(lambda seen=seen: last_commit(scene.checkpoint(copying)) > seen + 2, seconds=DRIVER_SECONDS_MAX)
            time.sleep(0.037 * turn)
            kill(*process_tree(process.pid))
    for each in (copying, archiving):
        scene.run_well(each)
    copied = scene.copied()
    assert set(copied) == set(values)
    assert len(copied) <= len(values) + 200 * deaths
    assert scene.archived() == values


@pytest.mark.campaign
@pytest.mark.timeout(1800)
@IN_BOTH
def test_executors_that_are_killed_under_their_tasks(scene: Scene, tmp_path: Path) -> None:
    values = scene.fill(10_000)
    copying, archiving = scene.copying(), scene.archiving()
    with driver(scene, tmp_path, "--master", "local-cluster[2,1,1024]") as process:
        for _ in range(3):
            before = [last_commit(scene.checkpoint(each)) for each in (copying, archiving)]
            for each, done in zip((copying, archiving), before, strict=True):
                wait_for(
                    lambda each=each, done=done: last_commit(scene.checkpoint(each)) > done + 2,
                    seconds=DRIVER_SECONDS_MAX,
                )
            victims = executors_of(process.pid)
            assert victims
            kill(victims[0])
        scene.wait_until_read(copying, len(values))
        scene.wait_until_read(archiving, len(values))
    assert set(scene.copied()) == set(values)
    assert scene.archived() == values


# A driver of its own


@contextmanager
def driver(scene: Scene, folder: Path, *args: str, text: str | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """`clarion pipeline run`, in a process that may be killed; whatever is left of it goes at the end."""
    file = folder / "pipelines.py"
    file.write_text(text or FILE.format(source=SOURCE, target=TARGET, lake=scene.lake))
    command = [str(Path(sys.executable).with_name("clarion")), "pipeline", "run", str(file)]
    options = [
        "--bootstrap",
        scene.broker.bootstrap,
        "--state-dir",
        str(scene.state),
        "--conf",
        "spark.ui.enabled=false",
    ]
    with (folder / "driver.log").open("ab") as log:
        process = subprocess.Popen([*command, *options, *args], stdout=log, stderr=log, cwd=folder)
    try:
        yield process
    finally:
        kill(*process_tree(process.pid))
        process.wait()


def kill_between_the_commits(scene: Scene, folder: Path) -> int:
    """Watch for a batch that the table has and the checkpoint has not; the JVM is stopped while we look. Its number."""
    archiving = scene.archiving()
    checkpoint, seen = scene.checkpoint(archiving), table_state(scene)
    with driver(scene, folder, "--only", "archiving") as process:
        deadline = time.monotonic() + DRIVER_SECONDS_MAX
        while time.monotonic() < deadline:
            assert process.poll() is None, (folder / "driver.log").read_text()[-4000:]
            if (state := table_state(scene)) == seen:
                time.sleep(0.0005)
                continue
            seen = state
            with stopped(jvm_of(process.pid)):
                number = last_plan(checkpoint)
                if last_commit(checkpoint) < number and table_has(scene, archiving, number):
                    kill(*process_tree(process.pid))
                    return number
    raise AssertionError("the moment between the two commits was never met")


def table_state(scene: Scene) -> int:
    """Changes with every commit."""
    log = Path(scene.lake, "_delta_log")
    return log.stat().st_mtime_ns if log.exists() else -1


def table_has(scene: Scene, played: Pipeline, number: int) -> bool:
    from deltalake import DeltaTable

    version = DeltaTable(scene.lake).transaction_version(query_id(scene.checkpoint(played)))
    return version is not None and version >= number
