"""`kill -9` while topics come and go: what was acknowledged has happened, whole; what was not has happened or not."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from tests.crash.load import PATIENCE_S, QUIET, Client, History, Publisher, Reader, make_topic
from tests.history import check
from tests.servers import ClarionProcess
from tests.waiting import wait_for

NAMES = 8


class Architect(Client):
    """Makes and deletes topics by turns, and knows of each whether it is there, is not, or may be."""

    def __init__(self, history: History, bootstrap: str, seed: int) -> None:
        super().__init__(history)
        self.exists: dict[str, bool | None] = {f"t{number}": False for number in range(NAMES)}
        self.changes = 0
        self._admin = AdminClient({**QUIET, "bootstrap.servers": bootstrap})
        self._random = random.Random(seed)

    def work(self) -> None:
        while not self._stopping.is_set():
            name = self._random.choice(sorted(self.exists))
            wanted = not self.exists[name]
            self.exists[name] = None
            try:
                self._change(name, wanted)
            except KafkaException:
                continue  # already so, or nobody knows
            self.exists[name] = wanted
            self.changes += 1

    def _change(self, name: str, wanted: bool) -> None:
        if wanted:
            self._admin.create_topics([NewTopic(name, 3, 1)], request_timeout=1)[name].result(PATIENCE_S)
        else:
            self._admin.delete_topics([name], request_timeout=1)[name].result(PATIENCE_S)


def test_topics_are_made_and_deleted_whole_or_not_at_all(tmp_path: Path):
    run(tmp_path, kills=3)


@pytest.mark.campaign
@pytest.mark.timeout(1200)
def test_fifty_kills_leave_no_half_made_topic(tmp_path: Path):
    run(tmp_path, kills=50)


def run(tmp_path: Path, kills: int) -> None:
    chance = random.Random(kills)
    with ClarionProcess(tmp_path / "data") as server:
        for number in range(kills):
            architect = Architect(History(), server.bootstrap, seed=number)
            architect.exists |= _present(server.bootstrap)
            architect.start()
            wait_for(lambda one=architect: one.changes >= 3, seconds=PATIENCE_S, what="changes of topics")
            time.sleep(chance.uniform(0, 0.05))
            server.kill9()
            architect.begin_to_stop()
            server.start()
            architect.stop()
            _check_topics(server, architect.exists)
        _check_usable(server)


def _present(bootstrap: str) -> dict[str, bool]:
    admin = AdminClient({**QUIET, "bootstrap.servers": bootstrap})
    return dict.fromkeys(admin.list_topics(timeout=PATIENCE_S).topics, True)


def _check_topics(server: ClarionProcess, expected: dict[str, bool | None]) -> None:
    present = _present(server.bootstrap)
    for name, exists in expected.items():
        assert exists is None or exists == (name in present), f"{name}: acknowledged {exists}, found {name in present}"
    # What was asked for while the broker was away comes when it is back, perhaps between a look at one and the other.
    wait_for(lambda: _folders(server) == _named(_present(server.bootstrap)), what="no folder too many or too few")


def _folders(server: ClarionProcess) -> set[str]:
    return {path.name for path in server.data_dir.iterdir() if path.is_dir()} - {"registry.journal"}


def _named(topics: dict[str, bool]) -> set[str]:
    return {f"{name}-{number}" for name in topics for number in range(3)}


def _check_usable(server: ClarionProcess) -> None:
    """Old topics take messages, and a new one with the name of a deleted one begins empty."""
    history = History()
    for name in sorted({f"t{number}" for number in range(NAMES)} - set(_present(server.bootstrap))):
        make_topic(server.bootstrap, name, 3)
    for number in range(0, NAMES, 3):
        publisher = Publisher(history, server.bootstrap, "p", f"t{number}", 3)
        publisher.start()
        wait_for(lambda one=publisher: one.acked > 10, seconds=PATIENCE_S)
        publisher.stop()
        Reader(history, server.bootstrap, "r", f"t{number}", 3).read_on()
    check(history.operations)
