"""Whatever crowds do to memory and sockets, honest clients are served: no reset, little delay, and a bounded broker."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path

import pytest

from tests.limits.siege import Honest, Memory, Siege, p99, side_by_side, wait_until_settled
from tests.raw_client import RawClient
from tests.servers import ClarionProcess
from tests.traps import words

TOPICS = 100


def prepared(tmp_path: Path, **env: str) -> ClarionProcess:
    server = ClarionProcess(tmp_path / "data", durability="page-cache", env={"CLARION_LOG_LEVEL": "warning", **env})
    server.start()
    with RawClient(server.bootstrap) as raw:
        for number in range(TOPICS):
            words.create_topic(raw, f"topic-{number}")
    return server


def test_a_small_siege_resets_no_honest_client_and_ends_with_a_clean_stop(tmp_path: Path):
    """A tenth of the real one, with a tenth of the memory."""
    env = {"CLARION_LIMITS_FRAMES_MEMORY_MAX": str(13 << 20), "CLARION_LIMITS_FRAME_SECONDS_MAX": "20"}
    with closing(prepared(tmp_path, **env)) as server:
        honest = Honest(server.bootstrap)
        honest.round(20)
        with Siege(server.bootstrap, 200, 60, 10, TOPICS):
            honest.round(200)
            assert Memory(server).peak_mb < 150
            assert server.terminate() == 0
            assert "Traceback" not in server.stderr
        honest.close()


@pytest.mark.campaign
@pytest.mark.timeout(900)
def test_two_thousand_announcers_six_hundred_tricklers_and_a_hundred_deaf(tmp_path: Path, capsys):
    """Beside a broker that nobody besieges: honest clients ask both in turns."""
    with (
        capsys.disabled(),
        closing(prepared(tmp_path / "calm")) as calm_server,
        closing(prepared(tmp_path / "besieged")) as server,
    ):
        calm, besieged = Honest(calm_server.bootstrap), Honest(server.bootstrap)
        side_by_side(calm, besieged, 2, 200)
        with Siege(server.bootstrap, 2000, 600, 100, TOPICS) as siege:
            settled = wait_until_settled(server)
            in_calm, under_siege = side_by_side(calm, besieged, 15, 200)
            peak = Memory(server).peak_mb
            began = time.monotonic()
            assert server.terminate() == 0
            stopped = time.monotonic() - began
            closed = siege.end()
        calm.close()
        besieged.close()
        for name in in_calm:
            print(f"{name}: p99 {p99(in_calm[name]) * 1000:.2f} ms calm, {p99(under_siege[name]) * 1000:.2f} besieged")
        print(f"settled after {settled:.0f} s, {peak:.0f} MB at most, {closed} hostile closed, stop {stopped:.1f} s")
        assert peak < 300
        assert stopped < 5
        for name in in_calm:
            assert p99(under_siege[name]) <= 2 * p99(in_calm[name]), name
