"""The demo's part on Spark: a stream of log lines, a rollup that a reader prints, an archive that is read back.

The pipelines run as `clarion pipeline run` in a process of their own, as a user would start them; its JSON reports
are all that this part knows of them.
"""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event, Thread
from typing import Any

from clarion.cli.demo.clients import Publisher
from clarion.cli.demo.ledger import ReaderVerdict, SeenCounts, verdict
from clarion.cli.errors import CliError
from clarion.cli.link import Link, poll_available

LOGS, HEALTH = "logs", "service_health"
PARTITIONS = 3
_SERVICES = (("checkout", 40.0), ("search", 12.0), ("payments", 95.0), ("images", 5.0))
_START_SECONDS_MAX = 240.0  # ten on a quiet machine; a busy one starts a JVM and four Pythons slowly
_TRIES = 3  # a busy machine may be too slow for one of Spark's own deadlines; the next try goes on where it was
_STOP_SECONDS_MAX = 90.0
_QUIET_SECONDS = 10.0
_PRINTED = 5
# A JVM that lives for minutes: compiling for speed (C2) would take 20 of the 50 seconds of a core that it needs until
# the first batches are through, and gives nothing back before it ends.
_SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_PIPELINES = Path(__file__).with_name("pipelines.py")


def is_spark_here() -> bool:
    from importlib.util import find_spec

    return all(find_spec(each) is not None for each in ("pyspark", "pyarrow", "deltalake"))


class LogPublisher(Publisher):
    """Log lines of a few services, some slow, some errors; the very last one closes the rollup's windows."""

    topic = LOGS

    def __init__(self, link: Link, rate: float) -> None:
        super().__init__(link, rate)
        self._ahead = timedelta(0)

    def compose(self, number: int) -> tuple[str, dict[str, Any]]:
        service, usual_ms = self._random.choice(_SERVICES)
        latency_ms = usual_ms * math.exp(self._random.gauss(0, 0.5))
        moment = datetime.now(UTC) + self._ahead
        return service, {
            "number": number,
            "ts": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": "ERROR" if self._random.random() < 0.03 else "INFO",
            "service": service,
            "latency_ms": round(latency_ms, 2),
        }

    def finish(self) -> None:
        """A line from the future: event time passes all windows, as it would if the stream went on."""
        self._ahead = timedelta(hours=1)
        self._send()
        self.flush()


class HealthReader(Thread):
    """Reads what the rollup writes, and prints it."""

    def __init__(self, link: Link, say: Callable[[str], None]) -> None:
        super().__init__(name="health", daemon=True)
        self._link = link
        self._say = say
        self.stopping = Event()
        self.counted: dict[tuple[str, str], int] = {}
        self.repeated = 0
        self.printed: deque[str] = deque(maxlen=_PRINTED)
        self.error = ""

    def run(self) -> None:
        try:
            self._read()
        except Exception as error:  # shown, and fatal for the verdict: a thread must not die in silence
            self.error = " ".join(str(error).split()) or type(error).__name__

    def _read(self) -> None:
        consumer = self._link.consumer({"group.id": "demo-health", "auto.offset.reset": "earliest"})
        consumer.subscribe([HEALTH])
        while not self.stopping.is_set():
            for message in poll_available(consumer, 500, 0.1):
                if message.error() is None:
                    self._take(json.loads(message.value()))
        consumer.close()

    def _take(self, row: dict[str, Any]) -> None:
        place = (row["window_start"], row["service"])
        self.repeated += place in self.counted
        self.counted[place] = row["count"]
        line = (
            f"{row['window_start'][11:19]}  {row['service']:<9} {row['count']:>6,} requests"
            f"   p50 {row['latency_ms_p50']:6.1f} ms   p99 {row['latency_ms_p99']:6.1f} ms"
        )
        self.printed.append(line)
        self._say(line)


class SparkPart:
    """`say` gets what the reader prints, `tell` what happens to Spark."""

    def __init__(
        self,
        link: Link,
        folder: Path,
        rate: float,
        say: Callable[[str], None],
        tell: Callable[[str], None],
        command: Sequence[str] | None = None,
    ) -> None:
        self._link = link
        self._folder = folder
        self._command = list(command or self._run_pipelines())
        self._tell = tell
        self._errors = folder / "pipelines.err"
        self._process: subprocess.Popen[str] | None = None
        self._give_up_at = float("inf")
        self._tries_left = _TRIES
        self._was_ready = False
        self._failure = ""  # of a pipeline, while its process ends
        self._read_before: dict[str, int] = {}  # rows that earlier tries have read
        self._seen, self._quiet_since = (-1, -1), 0.0
        self.reports: dict[str, dict[str, Any]] = {}
        self.publisher = LogPublisher(link, rate)
        self.reader = HealthReader(link, say)

    def start(self) -> None:
        with self._errors.open("w") as errors:
            self._process = subprocess.Popen(self._command, cwd=self._folder, stdout=subprocess.PIPE, stderr=errors,
                                             text=True, start_new_session=True)  # fmt: skip  # Ctrl-C is for us alone
        Thread(target=self._listen, args=(self._process,), daemon=True).start()
        self._tries_left -= 1
        self._give_up_at = time.monotonic() + _START_SECONDS_MAX

    @property
    def is_ready(self) -> bool:
        """Whether both pipelines have come so far as to run, in this try."""
        self.check()
        states = [each["state"] for each in list(self.reports.values())]
        is_running = len(states) == 2 and all(state == "running" for state in states)
        if is_running and not self._was_ready:
            self._was_ready = True
            self._tell("Spark has joined: its pipelines begin with the first log line")
        if not self._was_ready and time.monotonic() > self._give_up_at:
            raise CliError(f"Spark did not start within {_START_SECONDS_MAX:g} s; --no-spark leaves it out")
        return self._was_ready

    def go_live(self) -> None:
        self.publisher.start()
        self.reader.start()

    def check(self) -> None:
        """Say what went wrong, if something did."""
        if self.reader.error:
            raise CliError(f"the reader of {HEALTH} failed: {self.reader.error}")
        if self._process is None:
            return
        failed = next((each for each in list(self.reports.values()) if each["state"] == "failed"), None)
        if self._process.poll() is not None:
            self._try_again(self._failure or (failed or {}).get("last_error") or self._last_words())
        elif failed is not None and not self._failure:
            self._failure = failed.get("last_error") or "it does not say why"
            self._process.send_signal(signal.SIGTERM)  # the other one, too: both are started anew

    def _try_again(self, reason: str) -> None:
        if not self._tries_left:
            raise CliError(f"the pipelines failed: {reason} (--no-spark leaves them out)")
        self._tell(f"Spark is started again: {reason}")
        for name, report in self.reports.items():
            self._read_before[name] = self._read_before.get(name, 0) + int(report["rows_in"])
        self.reports, self._failure, self._was_ready = {}, "", False
        self.start()

    def _last_words(self) -> str:
        lines = self._errors.read_text(errors="replace").strip().splitlines()
        return lines[-1].removeprefix("clarion: ") if lines else "they say nothing"

    def _rows_read(self) -> dict[str, int]:
        reports = dict(self.reports)
        return {name: int(each["rows_in"]) + self._read_before.get(name, 0) for name, each in reports.items()}

    def end_of_events(self) -> None:
        """Once, when the last line has been sent."""
        self.publisher.stopping.set()
        self.publisher.join()
        self.publisher.finish()

    @property
    def progress(self) -> int:
        """Grows as long as something moves."""
        return sum(self._rows_read().values()) + len(self.reader.counted)

    @property
    def has_everything(self) -> bool:
        """Both have read every line, and the windows have closed, but for the one in the future."""
        sent, read = self.publisher.acknowledged.distinct, self._rows_read()
        have_read = self.is_ready and len(read) == 2 and min(read.values()) >= sent
        return have_read and (sum(self.reader.counted.values()) >= sent - 1 or self._has_closed_its_windows())

    def _has_closed_its_windows(self) -> bool:
        """Lines that came too late are counted nowhere, so that the sum alone would never be complete. But the rollup
        keeps every window that is open: when only that of the future is left, and the reader has had time, all is done.
        """
        now, open_windows = time.monotonic(), max(int(each.get("state_rows") or 0) for each in self.reports.values())
        if (self.progress, open_windows) != self._seen:
            self._seen, self._quiet_since = (self.progress, open_windows), now
        return open_windows <= 1 and now - self._quiet_since > _QUIET_SECONDS

    def stop(self) -> None:
        self.publisher.stopping.set()
        self.reader.stopping.set()
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(_STOP_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        if self.reader.is_alive():
            self.reader.join(15)

    def verdict(self) -> ReaderVerdict:
        """The table, read back without Spark, against what was acknowledged."""
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError

        try:
            table = DeltaTable(str(self._folder / "lake" / "logs")).to_pyarrow_table(columns=["number"])
        except TableNotFoundError:
            raise CliError("the archive never wrote its table; Spark was too slow (--no-spark leaves it out)") from None
        seen = SeenCounts()
        seen.see(table.column("number").to_pylist())
        return verdict("archive (Delta table)", self.publisher.acknowledged, seen, None, may_repeat=False)

    def sentence(self) -> str:
        counted, sent = sum(self.reader.counted.values()), self.publisher.acknowledged.distinct - 1
        late = f", {sent - counted:,} came too late for theirs" if counted < sent else ""
        return f"the rollup counted {counted:,} of {sent:,} log lines in {len(self.reader.counted):,} windows{late}"

    def _listen(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            report = json.loads(line)
            if process is self._process:
                self.reports[report["pipeline"]] = report

    def _run_pipelines(self) -> list[str]:
        clients = [word for name, value in self._link.settings.items() for word in ("-X", f"{name}={value}")]
        return [
            sys.executable, "-m", "clarion.cli.main", *clients, "pipeline", "run", str(_PIPELINES), "--json",
            "--bootstrap", self._link.bootstrap, "--state-dir", str(self._folder / "pipelines"), "--restart",
            "--conf", "spark.ui.enabled=false", "--conf", f"spark.driver.extraJavaOptions={_SHORT_LIVED}",
        ]  # fmt: skip
