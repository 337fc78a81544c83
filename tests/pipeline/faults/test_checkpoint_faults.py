"""What a stopped pipeline may find when it comes back: no checkpoint, another topic, a log that begins later."""

import shutil

import pytest

from tests.pipeline.faults.scene import Scene
from tests.waiting import wait_for

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


@pytest.mark.campaign  # the connector loses its checkpoint in every run
def test_without_its_checkpoint_a_copy_begins_again_and_says_everything_twice(scene: Scene) -> None:
    """Nobody starts from the group's offsets; they are for people to see. (An archive starts where its table ends.)"""
    values = scene.fill(300)
    scene.run_well(scene.copying())
    shutil.rmtree(scene.state)
    values = scene.fill(100, first=300)
    scene.run_well(scene.copying())
    assert scene.copied() == sorted(values + values[:300])


@pytest.mark.campaign  # the connector and the checker meet such a topic in every run
def test_a_topic_that_was_deleted_and_made_again_is_not_taken_for_the_old_one(scene: Scene) -> None:
    old = scene.fill(300)
    scene.run_well(scene.copying())
    scene.recreate_source()
    new = scene.fill(500, first=1000)[1000:]  # more than before: offsets alone would look right

    ended = scene.run_once(scene.copying())
    assert ended.state == "failed"
    assert "was deleted and made again" in ended.last_error
    assert scene.copied() == old

    scene.run_well(scene.copying(failOnDataLoss="false"))
    assert scene.copied() == sorted(old + new)


def test_retention_that_overtakes_a_stopped_pipeline_is_told_and_nothing_else_is_lost(scene: Scene) -> None:
    read = scene.fill(300)
    scene.run_well(scene.copying())
    scene.fill(100, first=300)
    scene.set_retention(50)
    wait_for(lambda: scene.ends() == [(200, 200), (200, 200)], what="everything to be too old", seconds=30)
    scene.set_retention(-1)
    late = scene.fill(100, first=400)[400:]

    ended = scene.run_once(scene.copying())
    assert ended.state == "failed"
    assert "offsets 150 to 199 are deleted, the log begins at 200" in ended.last_error
    assert scene.copied() == read

    scene.run_well(scene.copying(failOnDataLoss="false"))
    assert scene.copied() == sorted(read + late)


def test_retention_waits_for_an_archive_that_is_stopped(scene: Scene) -> None:
    scene.fill(300)
    scene.run_well(scene.archiving())
    values = scene.fill(100, first=300)
    scene.set_retention(50)
    wait_for(lambda: [first for first, _ in scene.ends()] == [150, 150], what="what is archived to go", seconds=30)

    scene.run_well(scene.archiving())
    assert scene.archived() == values


@pytest.mark.campaign
@pytest.mark.parametrize("goes_on", [True, False], ids=["goes on", "fails"])
def test_a_topic_that_is_deleted_and_made_again_under_a_running_pipeline(scene: Scene, goes_on: bool) -> None:
    old = scene.fill(300)
    copying = scene.copying(failOnDataLoss=str(not goes_on).lower())
    with scene.playing(copying) as runner:
        scene.wait_until_read(copying, 300)
        scene.recreate_source()
        new = scene.fill(400, first=1000)[1000:]
        if goes_on:
            wait_for(lambda: scene.copied() == sorted(old + new), seconds=60, what="the new topic's messages")
        else:
            wait_for(lambda: runner.progresses[0].state == "failed", seconds=60, what="the pipeline to fail")
            assert "deleted" in runner.progresses[0].last_error
            assert scene.copied() == old


@pytest.mark.campaign
@pytest.mark.parametrize("turn", range(5))
def test_whatever_a_stopped_archive_finds_its_table_has_every_message_once(scene: Scene, turn: int) -> None:
    """Checkpoints lost now and then, a broker restarted between runs, batches of changing size."""
    count = 0
    for step in range(6):
        values = scene.fill(100 + 37 * (turn + step), first=count)
        count = len(values)
        if (turn + step) % 2:
            shutil.rmtree(scene.state, ignore_errors=True)
        if (turn + step) % 3 == 0:
            scene.broker.restart(kill=True)
        scene.run_well(scene.archiving())
        assert scene.archived() == values
