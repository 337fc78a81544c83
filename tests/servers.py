"""Brokers as real processes, for tests that need a whole one: started, killed, stopped, restarted, never left behind.

`ClarionProcess` runs `clarion serve`; `kafka_process` gives the same handle on Apache Kafka, so that a scenario can be
checked against the broker whose behaviour it claims to describe. Every wait is bounded, and a failure shows what the
process had to say.
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from clarion.compiled import VARIABLE

# Bounds on what takes a second: a machine that runs many other things may take a minute for it.
READY_SECONDS = 90
STOP_SECONDS = 60
METRICS = re.compile(r"metrics at (http://\S+/metrics)")
ADDRESS = re.compile(r"((?:\d{1,3}\.){3}\d{1,3}|localhost):(\d+)")

# A group's first rebalance waits for more members to come (3 s in Kafka). Tests bring their members themselves.
QUICK_GROUPS = {
    "CLARION_GROUP_INITIAL_REBALANCE_DELAY_MS": "0",
    "CLARION_GROUP_CONSUMER_HEARTBEAT_INTERVAL_MS": "500",
}


class ClarionProcess:
    """One `clarion serve` on its own data directory. `restart` keeps the directory and the port."""

    name = "clarion"

    def __init__(
        self,
        data_dir: Path,
        *,
        durability: str = "fsync",
        listen: str = "127.0.0.1:0",
        args: Sequence[str] = (),
        env: dict[str, str] | None = None,
    ) -> None:
        self.data_dir = Path(data_dir)
        self.bootstrap = ""
        self._listen = listen
        self._args = ["--durability", durability, *args]
        self._env = {**clean_environment(), **QUICK_GROUPS, "PYTHONFAULTHANDLER": "1", **(env or {})}
        self._output = self.data_dir.with_name(self.data_dir.name + ".out")
        self._errors = self.data_dir.with_name(self.data_dir.name + ".err")
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "ClarionProcess":
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int:
        assert self._process is not None, "not started"
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def stderr(self) -> str:
        return self._errors.read_text(errors="replace") if self._errors.exists() else ""

    @property
    def metrics_url(self) -> str:
        """Where it says that its metrics are; for one that was given `--metrics`."""
        found = METRICS.search(self._output.read_text(errors="replace"))
        assert found, "it names no metrics"
        return found[1]

    def start(self) -> "ClarionProcess":
        assert not self.is_running, "already running"
        self.data_dir.parent.mkdir(parents=True, exist_ok=True)
        with self._output.open("wb") as output, self._errors.open("ab") as errors:
            self._process = subprocess.Popen(self._command(), stdout=output, stderr=errors, env=self._env)
        self.bootstrap = self._wait_until_ready()
        self._listen = self.bootstrap
        return self

    def kill9(self) -> None:
        """The process dies between two instructions; what it had not handed to the kernel is gone."""
        self._end(signal.SIGKILL)

    def terminate(self) -> int:
        """Ask it to drain and stop; returns its exit status."""
        return self._end(signal.SIGTERM)

    def restart(self, *, kill: bool = False) -> "ClarionProcess":
        self.kill9() if kill else self.terminate()
        return self.start()

    def close(self) -> None:
        if self.is_running:
            self.kill9()

    def _command(self) -> list[str]:
        clarion = Path(sys.executable).with_name("clarion")
        return [str(clarion), "serve", "--data-dir", str(self.data_dir), "--listen", self._listen, *self._args]

    def _wait_until_ready(self) -> str:
        deadline = time.monotonic() + READY_SECONDS
        while time.monotonic() < deadline and self.is_running:
            line, newline, _ = self._output.read_text(errors="replace").partition("\n")
            if newline and (address := ADDRESS.search(line)):
                return f"{address[1]}:{address[2]}"
            time.sleep(0.005)
        state = "runs but says nothing" if self.is_running else f"ended with status {self._process.returncode}"
        self.close()
        raise AssertionError(f"clarion serve {state}\n{self._output.read_text()}\n{self.stderr[-8000:]}")

    def _show_stacks(self) -> None:
        """Python's fault handler writes what every thread is doing, and the process ends."""
        assert self._process is not None, "not started"
        self._process.send_signal(signal.SIGABRT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_SECONDS)

    def _end(self, how: signal.Signals) -> int:
        assert self._process is not None, "not started"
        self._process.send_signal(how)
        try:
            return self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._show_stacks()
            self._process.kill()
            self._process.wait()
            raise AssertionError(
                f"clarion did not stop within {STOP_SECONDS} s of {how.name}\n{self.stderr[-8000:]}"
            ) from None


def clean_environment() -> dict[str, str]:
    """Settings of whoever runs the tests must not leak into the broker under test. It is compiled if the tests are."""
    settings = {name for name in os.environ if name.startswith("CLARION_")} - {VARIABLE}
    return {name: value for name, value in os.environ.items() if name not in settings}


def peer_name() -> str:
    """Whom the scenarios talk to: `clarion`, or `kafka` when CLARION_TEST_PEER says so."""
    name = os.environ.get("CLARION_TEST_PEER", "clarion")
    assert name in ("clarion", "kafka"), f"CLARION_TEST_PEER={name}: clarion or kafka"
    return name


def start_peer(data_dir: Path) -> "ClarionProcess | KafkaProcess":
    """A running broker of the kind under test, on a fresh directory."""
    if peer_name() == "clarion":
        return ClarionProcess(data_dir).start()
    return kafka_process(data_dir)


def kafka_process(data_dir: Path) -> "KafkaProcess":
    """Apache Kafka behind the same handle; skips the test where it cannot be had."""
    import pytest
    from bench.peers.process import PeerUnavailable

    try:
        return KafkaProcess(data_dir)
    except PeerUnavailable as reason:
        pytest.skip(f"no Apache Kafka here: {reason}")


class KafkaProcess:
    """Apache Kafka with `ClarionProcess`'s verbs, and settings for impatient tests."""

    name = "kafka"

    def __init__(self, data_dir: Path) -> None:
        from bench.peers.kafka import KafkaServer

        class Quick(KafkaServer):
            def settings(self) -> dict[str, str]:
                quick = {"group.initial.rebalance.delay.ms": "0", "offsets.topic.num.partitions": "1"}
                return super().settings() | quick

        self.data_dir = Path(data_dir)
        self._server = Quick(self.data_dir, heap="512m").__enter__()
        self.bootstrap = f"127.0.0.1:{self._server.port}"

    @property
    def pid(self) -> int:
        return self._server.pid

    @property
    def is_running(self) -> bool:
        return self._server.is_running()

    @property
    def stderr(self) -> str:
        return self._server.log_path.read_text(errors="replace")

    def kill9(self) -> None:
        self._server.kill()

    def terminate(self) -> int:
        self._server.stop()
        return 0

    def start(self) -> "KafkaProcess":
        self._server.start()
        return self

    def restart(self, *, kill: bool = False) -> "KafkaProcess":
        self.kill9() if kill else self.terminate()
        return self.start()

    def close(self) -> None:
        self.kill9()
