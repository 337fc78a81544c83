"""Too many connections, too few descriptors, readers that hardly read, and crowds that say nothing."""

from __future__ import annotations

import os
import resource
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.fuzz.neighbour import Target
from tests.raw_client import RawClient
from tests.servers import ClarionProcess
from tests.traps import words
from tests.waiting import wait_for

KB_PER_CONNECTION_MAX = 20


def connect(target: Target | ClarionProcess, receive_bytes: int = 0) -> socket.socket:
    host, _, port = target.bootstrap.rpartition(":")
    connection = socket.socket()
    if receive_bytes:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    connection.settimeout(60)
    connection.connect((host, int(port)))
    return connection


def is_served(connection: socket.socket) -> bool:
    """Whether an ApiVersions gets an answer; False if the connection is refused."""
    try:
        connection.sendall(struct.pack(">ihhih", 10, 18, 0, 1, 0))
        return len(connection.recv(4)) == 4
    except ConnectionError:
        return False


@contextmanager
def broker(tmp_path: Path, **settings: str) -> Iterator[Target]:
    target = Target(tmp_path / "data", **settings)
    try:
        yield target
    finally:
        target.close()


def test_connections_beyond_the_limit_are_refused_and_the_others_go_on(tmp_path: Path):
    with broker(tmp_path, CLARION_LIMITS_CONNECTIONS_MAX="40") as target:
        crowd = [connect(target) for _ in range(60)]
        served = [is_served(one) for one in crowd]
        assert served.count(True) == 39, "the canary has one, the rest is taken"
        target.canary.check()
        for one in crowd[:10]:
            one.close()
        wait_for(lambda: target.connections() < 40, what="connections to be gone")
        late = connect(target)
        assert is_served(late), "there is room again"
        for one in [*crowd, late]:
            one.close()


class FewDescriptors(ClarionProcess):
    """A broker that may open only so many files, sockets included."""

    def __init__(self, data_dir: Path, descriptors: int, **settings: str) -> None:
        super().__init__(data_dir, env={"CLARION_OFFSETS_PARTITIONS": "1", **settings})
        self._descriptors = descriptors

    def _command(self) -> list[str]:
        return ["sh", "-c", f'ulimit -n {self._descriptors} && exec "$@"', "sh", *super()._command()]


def test_idle_connections_leave_the_log_its_files(tmp_path: Path):
    """More of them than there are descriptors. Segments roll, files are opened: not one write fails."""
    with FewDescriptors(tmp_path / "data", 300) as server, RawClient(server.bootstrap) as raw:
        words.create_topic(raw, "rolling", 4, segment_bytes="4096")
        assert _put(raw, 0) == 0
        crowd = [connect(server) for _ in range(400)]
        served = [is_served(one) for one in crowd]
        assert 50 < served.count(True) < 300
        codes = {_put(raw, partition) for _ in range(25) for partition in range(4)}
        assert codes == {0}
        for one in crowd:
            one.close()
        wait_for(lambda: _is_served_anew(server), what="room for a new connection")


def test_the_soft_limit_of_descriptors_is_raised_to_the_hard_one(tmp_path: Path):
    with ClarionProcess(tmp_path / "data") as server:
        soft, hard = resource.prlimit(server.pid, resource.RLIMIT_NOFILE)
        assert soft == hard


@pytest.mark.timeout(400)  # hundreds of flushes, on a disk that others use too
def test_a_broker_without_free_descriptors_serves_on_and_recovers(tmp_path: Path):
    """Accepting fails, and so does opening files; what is open does not suffer, and nothing is left of it."""
    server = ClarionProcess(tmp_path / "data", env={"CLARION_LIMITS_OPEN_FILES_MAX": "16"})
    with server, RawClient(server.bootstrap) as raw:
        words.create_topic(raw, "rolling", 4, segment_bytes="4096")
        calm = _cpu_seconds_of_produces(server, raw, rounds=15, allowed={0})
        used = len(os.listdir(f"/proc/{server.pid}/fd"))
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (used + 20, used + 20))
        crowd = [connect(server) for _ in range(80)]
        wait_for(lambda: _is_refused_anew(server), what="no free descriptor")
        # Refused where no file can be opened; timed out where a written batch waits for its flush, which needs one.
        short = _cpu_seconds_of_produces(server, raw, rounds=15, allowed={0, 7, 56})
        assert short < 5 * calm + 1, f"{short:.2f} s of work instead of {calm:.2f} s: it spins"
        for one in crowd:
            one.close()
        wait_for(lambda: _is_served_anew(server), what="room for a new connection")
        for partition in range(4):
            wait_for(lambda p=partition: _put(raw, p) == 0, what=f"partition {partition} to take messages again")
        assert server.is_running


def _is_served_anew(server: ClarionProcess) -> bool:
    with connect(server) as connection:
        return is_served(connection)


def _is_refused_anew(server: ClarionProcess) -> bool:
    """A connection that is not accepted is cut off, or waits in the kernel's queue."""
    with connect(server) as connection:
        connection.settimeout(0.2)
        try:
            return not is_served(connection)
        except TimeoutError:
            return True


def _cpu_seconds_of_produces(server: ClarionProcess, raw: RawClient, rounds: int, allowed: set[int]) -> float:
    before = _cpu_seconds(server)
    codes = {_put(raw, partition) for _ in range(rounds) for partition in range(4)}
    assert codes <= allowed, "an error that says nothing"
    return _cpu_seconds(server) - before


def _put(raw: RawClient, partition: int) -> int:
    data = words.topic_data("rolling", words.batch(30), partition)
    answer = raw.ask("produce", 8, transactional_id=None, acks=-1, timeout=5000, topic_data=data)
    return answer.responses[0].partition_responses[0].error_code


def _cpu_seconds(server: ClarionProcess) -> float:
    fields = Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_readers_that_hardly_read_cost_a_bounded_amount(tmp_path: Path):
    """Twenty of them ask for 50 MB each and take a few bytes now and then."""
    with broker(tmp_path) as target, RawClient(target.bootstrap) as raw:
        words.create_topic(raw, "large")
        for _ in range(60):
            words.produce(raw, "large", _megabyte())
        before = target.rss_mb()
        wanted = [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 50_000_000}]
        values = words.fetch_values("large", wanted, max_bytes=50_000_000)
        slow = [RawClient(target.bootstrap) for _ in range(20)]
        for one in slow:
            one.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            one.send("fetch", 11, **values)
        for _ in range(20):
            for one in slow:
                assert one.socket.recv(2000)
        grown = target.rss_mb() - before
        print(f"{grown:.1f} MB for 20 slow readers; the canary waited {target.canary.check() * 1000:.0f} ms")
        assert grown < 40, f"{grown:.0f} MB for 20 readers"
        for one in slow:
            one.socket.close()


def _megabyte() -> bytes:
    from clarion.wire.records import encode_batch

    return bytes(encode_batch([(None, os.urandom(1_000_000), (), int(time.time() * 1000))]))


def test_a_thousand_idle_connections_cost_little(tmp_path: Path):
    _idle(tmp_path, 1_000)


@pytest.mark.campaign
def test_ten_thousand_idle_connections_cost_at_most_20_kb_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    with capsys.disabled():
        _idle(tmp_path, 10_000)


def _idle(tmp_path: Path, count: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < count + 500:
        pytest.skip(f"a process may open only {hard} files here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, count + 500), hard))
    try:
        with broker(tmp_path) as target:
            before = target.rss_mb()
            crowd = [connect(target) for _ in range(count)]
            assert all(is_served(one) for one in crowd)
            assert target.connections() == count + 1
            kb = (target.rss_mb() - before) * 1024 / count
            waited = target.canary.check()
            print(f"{count} idle connections: {kb:.1f} KB each; the canary waited {waited * 1000:.0f} ms")
            assert kb <= KB_PER_CONNECTION_MAX
            for one in crowd:
                one.close()
            wait_for(lambda: target.connections() == 1, seconds=30, what="connections to be gone")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_two_thousand_partitions_fit_into_one_fetch_session(tmp_path: Path):
    count = 2_000
    with broker(tmp_path, CLARION_LIMITS_PARTITIONS_MAX="3000") as target, RawClient(target.bootstrap) as raw:
        words.create_topic(raw, "wide", count)
        everything = [{"partition": n, "fetch_offset": 0, "partition_max_bytes": 10_000} for n in range(count)]
        first = raw.ask("fetch", 11, **{**words.fetch_values("wide", everything, max_wait=0), "session_epoch": 0})
        assert first.error_code == 0
        assert first.session_id > 0
        assert sum(len(topic.partitions) for topic in first.responses) == count
        words.produce(raw, "wide", words.batch(3), partition=1234)
        more = {**words.fetch_values("wide", []), "topics": [], "session_id": first.session_id, "session_epoch": 1}
        began = time.monotonic()
        second = raw.ask("fetch", 11, **more)
        assert [(one.partition_index, bool(one.records)) for one in second.responses[0].partitions] == [(1234, True)]
        print(f"an incremental fetch over {count} partitions took {(time.monotonic() - began) * 1000:.1f} ms")
        # The client has not asked for a later offset, so it is told of the same partition again, and of no other.
        again = raw.ask("fetch", 11, **{**more, "session_epoch": 2, "max_wait": 10})
        assert [(one.partition_index, bool(one.records)) for one in again.responses[0].partitions] == [(1234, True)]
        on = [{"topic": "wide", "partitions": [{**everything[1234], "fetch_offset": 3}]}]
        quiet = raw.ask("fetch", 11, **{**more, "session_epoch": 3, "topics": on, "max_wait": 10})
        assert quiet.error_code == 0
        assert not quiet.responses, "nothing is new"
