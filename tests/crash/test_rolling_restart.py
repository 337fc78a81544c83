"""All brokers are restarted, one after the other, while applications write and read: none hears of an error."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench.peers.kafka import jars
from bench.peers.process import PeerUnavailable

from clarion.testing import cluster
from tests.crash.applications import Aiokafka, Application, Confluent, Java, KafkaPython
from tests.crash.brokers import STORES, running_brokers
from tests.waiting import wait_for

PARTITIONS = 3
MORE = 50  # messages that each application writes and reads between two restarts
LIBRARIES = {"confluent": Confluent, "kafka-python": KafkaPython, "aiokafka": Aiokafka}
PATIENCE_SECONDS = 120


def wait_for_more(applications: list[Application]) -> None:
    """Every application goes on, or has heard of an error."""
    goals = [(one, len(one.written) + MORE, len(one.read) + MORE) for one in applications]

    def went_on() -> bool:
        return any(one.errors for one in applications) or all(
            len(one.written) >= written and len(one.read) >= read for one, written, read in goals
        )

    wait_for(went_on, seconds=PATIENCE_SECONDS, what=f"more messages of {[one.name for one, *_ in goals]}")


def finish(applications: list[Application]) -> None:
    for one in applications:
        one.stop_writing()
    for one in applications:
        if not one.errors:
            wait_for(lambda one=one: one.written <= one.read, seconds=PATIENCE_SECONDS, what=f"{one.name} reads all")
        one.stop()
    assert {one.name: one.errors for one in applications if one.errors} == {}


@pytest.mark.parametrize("library", LIBRARIES)
def test_an_application_hears_of_no_error_when_all_brokers_are_restarted(library: str):
    with cluster(brokers=3, topics={"t": PARTITIONS}) as brokers:
        brokers.wait_until_in_sync("t")
        applications: list[Application] = [LIBRARIES[library](brokers.bootstrap, "t")]
        applications[0].start()
        wait_for_more(applications)
        for number in (1, 2, 3):
            brokers.stop(number)
            brokers.start(number)
            brokers.wait_until_in_sync("t")
            brokers.wait_until_in_sync("__consumer_offsets")
            wait_for_more(applications)
        finish(applications)


@pytest.mark.campaign
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("store", STORES)
def test_no_application_of_any_library_hears_of_an_error(
    tmp_path: Path, store: str, capsys: pytest.CaptureFixture[str]
):
    """Processes, twice around, and the Java client beside the others."""
    with running_brokers(tmp_path, store) as brokers:
        applications: list[Application] = []
        for name, library in LIBRARIES.items():
            brokers.create(name, PARTITIONS)
            applications.append(library(brokers.bootstrap, name))
        if (java := _java(brokers.bootstrap, tmp_path)) is not None:
            brokers.create("java", PARTITIONS)
            applications.append(java)
        try:
            for one in applications:
                one.start()
            wait_for_more(applications)
            for _ in range(2):
                for number in brokers.ids:
                    brokers.restart(number)
                    wait_for_more(applications)
            finish(applications)
        finally:
            if java is not None:
                java.kill()
        with capsys.disabled():
            print(f"\n{store}: " + ", ".join(f"{one.name} {len(one.written)} messages" for one in applications))


def _java(bootstrap: str, folder: Path) -> Java | None:
    try:
        jars()
    except PeerUnavailable as reason:
        print(f"without the Java client: {reason}")
        return None
    return Java(bootstrap, "java", folder)
