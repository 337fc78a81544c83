"""The broker under attack, and its well-behaved client: what must not suffer, measured.

`Target` is a broker process whose vital signs (memory, descriptors, connections, tracebacks) are compared before and
after every attack. `Canary` writes and reads beside it all the time, and keeps its worst waiting time.
"""

from __future__ import annotations

import os
import re
import threading
import time
import urllib.request
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from clarion.wire.records import decode_batch
from tests.raw_client import RawClient
from tests.servers import ClarionProcess
from tests.traps import words
from tests.waiting import wait_for

CANARY_SECONDS_MAX = 2.0  # an attack that works costs far more
OVERSLEPT_FACTOR = 10  # on a machine that is busy with other things, the canary itself does not wake when it should
SETTLE_SECONDS = 60.0
GROWTH_MB_MAX = 80.0  # codecs, caches and the allocator's slack; a leak under thousands of requests is larger
SETTINGS = {
    "CLARION_LIMITS_PARTITIONS_MAX": "500",  # random requests make topics; they need not be large
    "CLARION_LIMITS_FRAME_SECONDS_MAX": "3",
    "CLARION_OFFSETS_PARTITIONS": "2",
    "CLARION_SHARE_COORDINATOR_STATE_TOPIC_NUM_PARTITIONS": "2",
    "CLARION_LOG_LEVEL": "warning",
}


@dataclass(frozen=True)
class Vitals:
    rss_mb: float
    descriptors: int
    connections: int


class Target:
    """A broker with a canary."""

    def __init__(self, data_dir: Path, **settings: str) -> None:
        env = {**SETTINGS, **settings}
        self.server = ClarionProcess(data_dir, args=["--metrics", "127.0.0.1:0"], env=env).start()
        self.bootstrap = self.server.bootstrap
        self.canary = Canary(self.bootstrap)
        self.canary.start()
        self._log_read = 0

    def close(self) -> None:
        self.canary.stop()
        assert self.server.is_running, f"the broker died\n{self.server.stderr[-8000:]}"
        assert self.server.terminate() == 0, "the broker did not stop cleanly"

    def vitals(self) -> Vitals:
        return Vitals(self.rss_mb(), self.descriptors(), self.connections())

    def descriptors(self) -> int:
        """Without logs, of which a broker keeps some hundred open: random requests make topics."""
        folder, found = f"/proc/{self.server.pid}/fd", 0
        for name in os.listdir(folder):
            with suppress(FileNotFoundError):  # closed meanwhile
                found += not os.readlink(f"{folder}/{name}").endswith(".log")
        return found

    def rss_mb(self) -> float:
        status = Path(f"/proc/{self.server.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+) kB", status)[1]) / 1024

    def connections(self) -> int:
        return int(self.metric("clarion_connections"))

    def metric(self, name: str) -> float:
        with urllib.request.urlopen(self.server.metrics_url, timeout=SETTLE_SECONDS) as page:
            return float(re.search(rf"^{name} (\S+)$", page.read().decode(), re.MULTILINE)[1])

    def check_unharmed(self, before: Vitals) -> str:
        """Alive, as many connections and files as before, about as much memory, nobody waited, no bug in its log."""
        assert self.server.is_running, f"the broker died\n{self.server.stderr[-8000:]}"
        self._check_no_traceback()
        wait_for(
            lambda: self.connections() <= before.connections, seconds=SETTLE_SECONDS, what="connections to be gone"
        )
        wait_for(
            lambda: self.descriptors() <= before.descriptors + 4,
            seconds=SETTLE_SECONDS,
            what="descriptors to be closed",
        )
        worst = self.canary.check()
        grown = self.rss_mb() - before.rss_mb
        assert grown < GROWTH_MB_MAX, f"the broker grew by {grown:.0f} MB"
        return f"canary waited at most {worst * 1000:.0f} ms; the broker grew by {grown:.1f} MB"

    def _check_no_traceback(self) -> None:
        """A traceback is an error nobody thought of, whatever else came of it."""
        log = self.server.stderr[self._log_read :]
        self._log_read += len(log)
        count = log.count("Traceback")
        at = max(0, log.find("Traceback") - 300)
        assert not count, f"{count} tracebacks; the first:\n{log[at : at + 4000]}"


class Canary:
    """Produces one message at a time and reads it back, on connections of its own."""

    topic = "canary.neighbour"

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._error: BaseException | None = None
        self._worst = 0.0
        self._overslept = 0.0
        self._count = 0

    def start(self) -> None:
        self._raw = RawClient(self._bootstrap)
        words.create_topic(self._raw, self.topic)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(30)
        if self._error is not None:
            raise AssertionError("the neighbour was harmed") from self._error
        self._check_all_there()

    def check(self) -> float:
        """The longest wait since the last check, the present one included; at least one message has gone round."""
        seen = self._count
        wait_for(lambda: self._error or self._count > seen, seconds=SETTLE_SECONDS, what="an answer to the neighbour")
        if self._error is not None:
            raise AssertionError("the neighbour was harmed") from self._error
        worst, self._worst = self._worst, 0.0
        overslept, self._overslept = self._overslept, 0.0
        limit = CANARY_SECONDS_MAX + OVERSLEPT_FACTOR * overslept
        assert worst < limit, f"the neighbour waited {worst:.2f} s, and woke {overslept:.2f} s late at most"
        return worst

    def _run(self) -> None:
        try:
            with self._raw as raw:
                while not self._stopping.is_set():
                    self._sleep()
                    self._go_round(raw)
        except BaseException as error:
            self._error = error

    def _sleep(self) -> None:
        began = time.monotonic()
        self._stopping.wait(0.005)
        self._overslept = max(self._overslept, time.monotonic() - began - 0.005)

    def _go_round(self, raw: RawClient) -> None:
        began = time.monotonic()
        answer = words.produce(raw, self.topic, words.batch(1))
        assert answer.base_offset == self._count, f"{answer} after {self._count}"
        found = words.fetch(raw, 11, self.topic, self._count, max_wait=100)
        assert words.base_offsets(found.records)[0] == self._count, "what was written is not what is read"
        self._count += 1
        self._worst = max(self._worst, time.monotonic() - began)

    def _check_all_there(self) -> None:
        with RawClient(self._bootstrap) as raw:
            at = 0
            while at < self._count:
                found = words.fetch(raw, 11, self.topic, at).records
                for base in words.base_offsets(found):
                    assert base == at, f"offset {base} where {at} was expected"
                    at += 1
                size = 12 + int.from_bytes(found[8:12], "big")
                assert decode_batch(found[:size]), "a batch that nobody can read"
