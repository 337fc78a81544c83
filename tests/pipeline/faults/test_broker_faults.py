"""Brokers that die, come back, or say nothing while pipelines run: they wait, go on, and lose and double nothing."""

import pytest

from tests.pipeline.faults.scene import Scene
from tests.waiting import wait_for

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


@pytest.mark.campaign  # the connector waits for a restarted broker, and the checker kills one, in every run
def test_a_broker_that_is_killed_in_mid_batch_and_comes_back(scene: Scene) -> None:
    values = scene.fill(2400)
    copying, archiving = scene.copying(), scene.archiving()
    with scene.playing(copying, archiving):
        scene.wait_for_batches(copying, 2)
        scene.wait_for_batches(archiving, 2)
        scene.broker.restart(kill=True)
        scene.wait_until_read(copying, len(values))
        scene.wait_until_read(archiving, len(values))
    assert scene.copied() == values
    assert scene.archived() == values


@pytest.mark.campaign  # the connector's own stream meets a frozen broker in every run
def test_a_broker_that_freezes_in_mid_batch(scene: Scene) -> None:
    """It says nothing for longer than a client waits for an answer, then answers everything, old questions too."""
    values = scene.fill(2400)
    copying, archiving = scene.copying(), scene.archiving()
    with scene.playing(copying, archiving):
        scene.wait_for_batches(copying, 2)
        scene.wait_for_batches(archiving, 2)
        scene.freeze_broker(seconds=3.5)
        scene.wait_until_read(copying, len(values))
        scene.wait_until_read(archiving, len(values))
    assert scene.copied() == values
    assert scene.archived() == values


def test_a_broker_that_does_not_come_back_in_time_ends_the_query_and_the_next_run_goes_on(scene: Scene) -> None:
    values = scene.fill(2000)
    archiving = scene.archiving(**{"default.api.timeout.ms": "1500"})
    with scene.playing(archiving) as runner:
        scene.wait_for_batches(archiving, 1)
        scene.broker.kill9()
        wait_for(lambda: runner.progresses[0].state == "failed", seconds=60, what="the query to give up")
    assert f"{scene.broker.bootstrap} cannot be reached" in runner.progresses[0].last_error
    scene.broker.start()
    scene.run_well(archiving)
    assert scene.archived() == values


@pytest.mark.campaign
@pytest.mark.timeout(900)
def test_a_broker_that_dies_stops_and_freezes_over_and_over(scene: Scene) -> None:
    values = scene.fill(20_000)
    copying, archiving = scene.copying(), scene.archiving()
    with scene.playing(copying, archiving):
        for turn in range(12):
            scene.wait_for_batches(copying, 1)
            scene.wait_for_batches(archiving, 1)
            match turn % 3:
                case 0:
                    scene.broker.restart(kill=True)
                case 1:
                    scene.broker.restart()
                case 2:
                    scene.freeze_broker(seconds=2.5)
        scene.wait_until_read(copying, len(values))
        scene.wait_until_read(archiving, len(values))
    assert scene.copied() == values
    assert scene.archived() == values
