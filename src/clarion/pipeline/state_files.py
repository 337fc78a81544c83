"""What a pipeline leaves on disk, in `<state-dir>/<name>/`.

checkpoint/      Spark's: where the pipeline is. Whoever deletes it starts the pipeline from its beginning.
status.json      how the run went or goes, replaced as a whole about once a second
run.lock         holds a pid, and is locked (flock) while that process runs the pipeline: a crash unlocks it
spark.pid        the JVM that plays the pipeline: it may outlive a process that was killed, for a moment
stop-requested   there while somebody has asked that process to stop this pipeline
spark.log        what Spark said in the last run that this pipeline was the first of
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

DEFAULT_STATE_DIR = Path("clarion-pipelines")


class PipelineRunningError(Exception):
    """Two processes must not run one pipeline: they would share a checkpoint."""


class StateFolder:
    def __init__(self, state_dir: Path, name: str) -> None:
        self.name = name
        self.path = state_dir.absolute() / name
        self.checkpoint = self.path / "checkpoint"
        self.log = self.path / "spark.log"
        self._status = self.path / "status.json"
        self._lock = self.path / "run.lock"
        self._stop = self.path / "stop-requested"
        self._spark = self.path / "spark.pid"

    @contextmanager
    def held(self) -> Iterator[None]:
        """This process runs the pipeline within the block; PipelineRunningError if another one does."""
        self.path.mkdir(parents=True, exist_ok=True)
        with self._lock.open("a+") as file:
            if not _lock(file.fileno(), fcntl.LOCK_EX):
                raise PipelineRunningError(
                    f"pipeline {self.name} is already running (process {self.pid()}); "
                    f"`clarion pipeline stop {self.name}` ends it"
                )
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
            self._stop.unlink(missing_ok=True)
            try:
                yield
            finally:
                file.truncate(0)

    def pid(self) -> int | None:
        """The process that runs the pipeline; None if nobody does."""
        try:
            with self._lock.open() as file:
                if _lock(file.fileno(), fcntl.LOCK_SH):
                    return None
                text = file.read().strip()
        except OSError:
            return None
        return int(text) if text.isdigit() else None

    def note_spark(self, pid: int) -> None:
        self._spark.write_text(str(pid))

    def spark(self) -> int | None:
        """The JVM that plays the pipeline, if it is still there; it may be that of a run that was killed."""
        try:
            pid = int(self._spark.read_text())
            return pid if b"java" in Path(f"/proc/{pid}/cmdline").read_bytes() else None
        except (OSError, ValueError):
            return None

    @property
    def exists(self) -> bool:
        return self._lock.exists() or self._status.exists()

    @property
    def has_checkpoint(self) -> bool:
        """Whether the pipeline has begun, so that it goes on where it was."""
        return any(True for _ in _files(self.checkpoint / "offsets"))

    def request_stop(self) -> None:
        self._stop.touch()

    @property
    def is_stop_requested(self) -> bool:
        return self._stop.exists()

    def write_status(self, status: dict[str, Any]) -> None:
        """A reader sees the old status or the new one, never half of it."""
        handle, aside = tempfile.mkstemp(prefix=".status-", dir=self.path)
        with os.fdopen(handle, "w") as file:
            json.dump(status, file, indent=1, default=str)
        os.replace(aside, self._status)

    def read_status(self) -> dict[str, Any]:
        try:
            status = json.loads(self._status.read_text())
        except (OSError, ValueError):
            return {}
        return status if isinstance(status, dict) else {}

    def in_flight(self) -> int | None:
        """The batch that has been planned and is not committed yet, if there is one."""
        planned = max((int(each) for each in _files(self.checkpoint / "offsets")), default=-1)
        done = max((int(each) for each in _files(self.checkpoint / "commits")), default=-1)
        return planned if planned > done else None

    def has_committed(self, batch: int) -> bool:
        return (self.checkpoint / "commits" / str(batch)).exists()

    def reset(self) -> None:
        """Forget where the pipeline was. The lock stays, so that nobody starts it meanwhile."""
        with self.held():
            shutil.rmtree(self.checkpoint, ignore_errors=True)
            for each in (self._status, self.log, self._spark):
                each.unlink(missing_ok=True)


def state_folders(state_dir: Path) -> list[StateFolder]:
    """Every pipeline that has been run with this folder, by name."""
    if not state_dir.is_dir():
        return []
    folders = (StateFolder(state_dir, each.name) for each in sorted(state_dir.iterdir()) if each.is_dir())
    return [each for each in folders if each.exists]


def _lock(handle: int, how: int) -> bool:
    try:
        fcntl.flock(handle, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _files(folder: Path) -> Iterator[str]:
    """The batches of one of the checkpoint's logs; their files have numbers as names."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return
    yield from (each for each in names if each.isdigit())
