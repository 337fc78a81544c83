"""A driver that is killed where a stream leaves the archive for the topic: no gap, nothing twice.

The batch that crosses the seam is held in its tasks until it has met its end. Then the archive grows beyond what that
batch was planned with, and retention takes from the brokers what the batch was about to read from them.
"""

import json
from pathlib import Path

import pytest

from clarion.pipeline.loading import load_file
from tests.pipeline import topics
from tests.pipeline.faults.processes import jvm_of, kill, process_tree, stopped
from tests.pipeline.faults.scene import IN_BOTH, SOURCE, Scene, last_commit, last_plan
from tests.pipeline.faults.test_process_faults import DRIVER_SECONDS_MAX, driver
from tests.waiting import wait_for

# A driver of its own, and three runs in this one: a minute and more on a quiet machine.
pytestmark = [pytest.mark.spark, pytest.mark.campaign, pytest.mark.timeout(1800)]

ARCHIVED = 625  # per partition; batches take a hundred of each, so one has messages of both sides
FILE = """
import os, time
from pyspark.sql.functions import udf
from pyspark.sql.types import LongType
from clarion.pipeline import pipeline, table, topic

options = {{"maxOffsetsPerTrigger": "200", "request.timeout.ms": "1000", "history": "{lake}", **{store}}}

@udf(LongType())
def held_at_the_seam(offset):
    while offset >= {seam} and not os.path.exists("{gate}"):
        time.sleep(0.05)
    return offset

@pipeline(reads=topic("{source}", options=options), writes=table("{lake}-followed"))
def following(rows):
    return rows.select("value", "partition", held_at_the_seam("offset").alias("offset"))
"""


@IN_BOTH
def test_a_driver_killed_at_the_seam_while_the_archive_moves_on(scene: Scene, tmp_path: Path) -> None:
    archived = scene.fill(2 * ARCHIVED)
    scene.run_well(scene.archiving())
    for partition in (0, 1):
        topics.delete_before(scene.broker.bootstrap, SOURCE, ARCHIVED // 2, partition)
    values = scene.fill(1000, first=len(archived))
    gate = tmp_path / "gate"
    text = FILE.format(source=SOURCE, lake=scene.lake, store=scene.store, seam=ARCHIVED, gate=gate)
    with driver(scene, tmp_path, text=text) as process:
        following = load_file(tmp_path / "pipelines.py")[0]
        checkpoint = scene.checkpoint(following)
        wait_for(
            lambda: crosses_the_seam(checkpoint) or process.poll() is not None,
            seconds=DRIVER_SECONDS_MAX,
            what="a batch at the seam",
        )
        assert process.poll() is None, (tmp_path / "driver.log").read_text()[-4000:]
        with stopped(jvm_of(process.pid)):
            in_flight = last_plan(checkpoint)
            assert last_commit(checkpoint) == in_flight - 1
            kill(*process_tree(process.pid))
    assert 0 < len(followed(scene)) < len(archived)
    scene.run_well(scene.archiving())
    for partition in (0, 1):
        topics.delete_before(scene.broker.bootstrap, SOURCE, ARCHIVED + 50, partition)
    gate.touch()
    scene.run_well(following)
    assert last_commit(checkpoint) > in_flight
    assert followed(scene) == [
        (partition, offset, value) for partition in (0, 1) for offset, value in enumerate(values[partition::2])
    ]


def crosses_the_seam(checkpoint: Path) -> bool:
    number = last_plan(checkpoint)
    if number < 0:
        return False
    offsets = json.loads((checkpoint / "offsets" / str(number)).read_text().splitlines()[-1])[SOURCE]
    return all(offsets[partition] > ARCHIVED for partition in ("0", "1"))


def followed(scene: Scene) -> list[tuple[int, int, bytes]]:
    rows = scene.rows_at(f"{scene.lake}-followed")
    return sorted((row["partition"], row["offset"], row["value"]) for row in rows)
