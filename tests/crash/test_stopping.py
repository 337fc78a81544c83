"""SIGTERM and SIGSTOP in the middle of load, and a registry that is damaged, fails, or was left in the middle."""

from __future__ import annotations

import os
import re
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

from clarion.model.errors import ErrorCode
from tests.crash.load import PATIENCE_S, History, Publisher, Reader, make_topic
from tests.history import check
from tests.raw_client import RawClient
from tests.servers import ClarionProcess, clean_environment
from tests.waiting import wait_for

PARTITIONS = 4
OPENED = re.compile(r"partitions_opened count=(\d+) clean=(\w+) cut_bytes=(\d+)")


def test_a_stop_under_load_loses_nothing_and_the_next_start_need_not_scan(tmp_path: Path):
    with ClarionProcess(tmp_path / "data") as server:
        history, publishers = _load(server)
        for _ in range(3):
            _wait_for_answers(publishers)
            assert server.terminate() == 0
            server.start()
            assert OPENED.findall(server.stderr)[-1] == (str(PARTITIONS), "True", "0")
        _finish(server, history, publishers)
    assert "Traceback" not in server.stderr


def test_a_frozen_broker_goes_on_where_it_was(tmp_path: Path):
    with ClarionProcess(tmp_path / "data") as server:
        history, publishers = _load(server)
        for _ in range(3):
            _wait_for_answers(publishers)
            os.kill(server.pid, signal.SIGSTOP)
            time.sleep(0.7)
            os.kill(server.pid, signal.SIGCONT)
        _finish(server, history, publishers)


def test_a_broker_frozen_longer_than_its_clients_wait_doubles_nothing(tmp_path: Path):
    """The clients give up on their connections and send again on new ones what the first ones still hold."""
    with ClarionProcess(tmp_path / "data") as server:
        history, publishers = _load(server, **{"socket.timeout.ms": 1000, "request.timeout.ms": 1000})
        for _ in range(2):
            _wait_for_answers(publishers)
            os.kill(server.pid, signal.SIGSTOP)
            time.sleep(2.5)
            os.kill(server.pid, signal.SIGCONT)
        _finish(server, history, publishers)


def test_a_half_written_change_at_the_end_of_the_registry_never_happened(tmp_path: Path):
    with ClarionProcess(tmp_path / "data") as server:
        make_topic(server.bootstrap, "kept", 2)
        server.kill9()
        with (server.data_dir / "registry.db-wal").open("ab") as file:
            file.write(b"half a page" * 100)
        server.start()
        make_topic(server.bootstrap, "later", 1)
        server.restart(kill=True)
        with RawClient(server.bootstrap) as client:
            names = {topic.name for topic in client.ask("metadata", 12, topics=None).topics}
    assert names == {"kept", "later"}


def test_a_damaged_registry_stops_the_start_with_one_line(tmp_path: Path):
    with ClarionProcess(tmp_path / "data") as server:
        make_topic(server.bootstrap, "orders", 1)
        assert server.terminate() == 0
    registry = server.data_dir / "registry.db"
    damaged = registry.read_bytes().replace(b"topics/orders", b"topics/ordres")
    registry.write_bytes(damaged)
    done = _serve(server.data_dir)
    assert done.returncode == 1
    assert re.search(r"registry\.db is damaged: .*ordres.* does not match", done.stderr), done.stderr
    assert "Traceback" not in done.stderr
    assert registry.read_bytes() == damaged, "nobody touches what he does not understand"


def test_a_registry_that_cannot_be_written_ends_the_process_and_nothing_is_half_believed(tmp_path: Path):
    """The change that failed is not said to have happened; the next start has everything that was."""
    with ClarionProcess(tmp_path / "data") as server:
        make_topic(server.bootstrap, "before", 1)
        size = (server.data_dir / "registry.db-wal").stat().st_size
        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (size, size))  # a write behind it fails, as on a bad disk
        with RawClient(server.bootstrap) as client:
            answer = client.ask("metadata", 4, topics=[{"name": "lost"}], allow_auto_topic_creation=True)
            assert [topic.error_code for topic in answer.topics] == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        wait_for(lambda: not server.is_running, seconds=PATIENCE_S)
        assert server._process.returncode == 1
        assert "store_failed" in server.stderr
        assert "cannot be written any longer" in server.stderr.splitlines()[-1]
        server.start()
        with RawClient(server.bootstrap) as client:
            names = {topic.name for topic in client.ask("metadata", 12, topics=None).topics}
    assert names == {"before"}


def _serve(data_dir: Path) -> subprocess.CompletedProcess[str]:
    serve = [str(Path(sys.executable).with_name("clarion")), "serve", "--data-dir", str(data_dir)]
    command, env = [*serve, "--listen", "127.0.0.1:0"], clean_environment()
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=PATIENCE_S)


def _load(server: ClarionProcess, **settings: object) -> tuple[History, list[Publisher]]:
    history = History()
    make_topic(server.bootstrap, "t", PARTITIONS, segment_bytes="131072")
    publishers = [
        Publisher(history, server.bootstrap, f"p{number}", "t", PARTITIONS, seed=number, **settings)
        for number in range(3)
    ]
    for one in publishers:
        one.start()
    return history, publishers


def _wait_for_answers(publishers: list[Publisher]) -> None:
    before = [one.acked + 200 for one in publishers]
    wait_for(lambda: all(one.acked > least for one, least in zip(publishers, before, strict=True)), seconds=PATIENCE_S)


def _finish(server: ClarionProcess, history: History, publishers: list[Publisher]) -> None:
    for one in publishers:
        one.stop()
    Reader(history, server.bootstrap, "reader", "t", PARTITIONS).read_on()
    check(history.operations)
