"""What a pipeline leaves on disk, in `<state-dir>/<name>/`.

checkpoint/      Spark's: where the pipeline is. Whoever deletes it starts the pipeline from its beginning.
status.json      how the run went or goes, replaced as a whole about once a second
run.lock         holds a pid, and is locked (flock) while that process runs the pipeline: a crash unlocks it
spark.pid        the JVM that plays the pipeline, and when it began: it may outlive a process that was killed
stop-requested   there while somebody has asked that process to stop this pipeline
spark.log        what Spark said in the last run that this pipeline was the first of
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clarion.pipeline.reasons import plain_reason

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_FILE = re.compile("file:(//)?(?=/)")  # Hadoop writes file:/a/b, others file:///a/b


class PipelineRunningError(Exception):
    """Two processes must not run one pipeline: they would share a checkpoint."""


class CheckpointAwayError(Exception):
    """A checkpoint in a place that cannot be looked at."""


class StateFolder:
    def __init__(self, state_dir: Path, name: str, checkpoints: str | None = None) -> None:
        """`checkpoints`: where they are kept if not here, as a URI or a folder."""
        self.name = name
        self.path = state_dir.absolute() / name
        self.checkpoint = self.path / "checkpoint"
        self._elsewhere = None if checkpoints is None else f"{checkpoints.rstrip('/')}/{name}"
        self.log = self.path / "spark.log"
        self._status = self.path / "status.json"
        self._lock = self.path / "run.lock"
        self._stop = self.path / "stop-requested"
        self._spark = self.path / "spark.pid"
        self._places: SparkPlaces | None = None
        self._made = [each for each in (self.path, self.path.parent) if not each.exists()]  # by us, if anybody does

    def note(self, error: BaseException) -> None:
        with suppress(OSError), self.log.open("a") as log:  # a full disk
            log.write("".join(traceback.format_exception(error)))

    def look_through(self, spark: SparkSession) -> None:
        """Checkpoints that are not on this machine's own file system are seen with Spark's eyes from here on."""
        self._places = SparkPlaces(spark)

    @property
    def is_far(self) -> bool:
        """Whether only Spark can look at the checkpoint."""
        return _local(self._place()) is None

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

    def remove_if_new(self) -> None:
        """Leave nothing of a first run that could not begin."""
        if self.path in self._made:
            shutil.rmtree(self.path, ignore_errors=True)
        if self.path.parent in self._made:
            with suppress(OSError):  # another pipeline has its folder there
                self.path.parent.rmdir()

    def note_spark(self, pid: int) -> None:
        """Once: a pipeline that is started again in the same Spark needs no room on a disk that has filled up."""
        if self.spark() != pid:
            self._spark.write_text(f"{pid} {_began(pid)}")

    def spark(self) -> int | None:
        """The JVM that plays the pipeline, if it is still there; it may be that of a run that was killed. Numbers of
        processes are given again, after a restart of the machine or of a container to any other Java."""
        try:
            pid, *began = self._spark.read_text().split()
            is_it = b"java" in Path(f"/proc/{int(pid)}/cmdline").read_bytes() and began in ([], [_began(int(pid))])
            return int(pid) if is_it else None
        except (OSError, ValueError):
            return None

    @property
    def exists(self) -> bool:
        return self._lock.exists() or self._status.exists()

    @property
    def has_checkpoint(self) -> bool:
        """Whether the pipeline has begun, so that it goes on where it was."""
        return bool(self._batches("offsets"))

    def why_not_begin(self, *, elsewhere: bool) -> str | None:
        """Why a stream may not run with this folder, in words; None if it may. `elsewhere`: it is told where to begin.
        Without its checkpoint it would read and write everything again."""
        reset = f"`clarion pipeline reset {self.name}`"
        if self.has_checkpoint:
            return (
                f"has begun and goes on where it was; {reset} lets it begin elsewhere (--from)" if elsewhere else None
            )
        place = self.last_checkpoint
        if _is_same_place(place, self.checkpoint_uri) or not self._has_batches_at(place):
            return None
        return (
            f"has its checkpoint at {place}: run it with the same --checkpoints as before; {reset} lets it begin anew"
        )

    def _has_batches_at(self, place: str) -> bool:
        """As far as it can be seen: of one that is far away while Spark is not there nothing is known."""
        is_seen = _local(place) is not None or self._places is not None
        return is_seen and any(each.isdigit() for each in self._names(f"{place}/offsets"))

    @property
    def checkpoint_uri(self) -> str:
        """As Spark is told. Hadoop takes the letters of a path as they are: nothing in it is percent-encoded."""
        if self._elsewhere is not None:
            return self._elsewhere
        # Earlier versions did encode it, so that it came to lie in a folder of that name (`my%20work` for `my work`).
        former = Path(self.checkpoint.as_uri().removeprefix("file://"))
        is_there = former.is_dir() and not self.checkpoint.exists()
        return f"file://{former if is_there else self.checkpoint}"

    @property
    def last_checkpoint(self) -> str:
        """Where the last run that had a checkpoint kept it."""
        return str(self.read_status().get("checkpoint") or self.checkpoint_uri)

    def request_stop(self) -> None:
        self._stop.touch()

    @property
    def is_stop_requested(self) -> bool:
        return self._stop.exists()

    def write_status(self, status: dict[str, Any]) -> None:
        """A reader sees the old status or the new one, never half of it. On a full disk it is the old one, and the
        pipeline goes on: it may have its checkpoint and its tables elsewhere."""
        with suppress(OSError), ExitStack() as stack:
            handle, aside = tempfile.mkstemp(prefix=".status-", dir=self.path)
            stack.callback(Path(aside).unlink, missing_ok=True)
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
        planned = max(self._batches("offsets"), default=-1)
        done = max(self._batches("commits"), default=-1)
        return planned if planned > done else None

    def has_committed(self, batch: int) -> bool:
        return batch in self._batches("commits")

    def reset(self) -> None:
        """Forget where the pipeline was, here and where its last run kept it. The lock stays, so that nobody starts it
        meanwhile."""
        with self.held():
            place = self._place()
            if (folder := _local(place)) is None:
                self._seen(place).remove(place)
            else:
                shutil.rmtree(folder, ignore_errors=True)
            shutil.rmtree(self.checkpoint, ignore_errors=True)
            for each in (self._status, self.log, self._spark):
                each.unlink(missing_ok=True)

    def _batches(self, log: str) -> list[int]:
        """The batches of one of the checkpoint's logs; their files have numbers as names."""
        return [int(each) for each in self._names(f"{self.checkpoint_uri}/{log}") if each.isdigit()]

    def _names(self, place: str) -> list[str]:
        folder = _local(place)
        return self._seen(place).names(place) if folder is None else _names_in(folder)

    def _place(self) -> str:
        """Where the checkpoint is, or was in the last run if nobody says."""
        return self._elsewhere or self.last_checkpoint

    def _seen(self, place: str) -> SparkPlaces:
        if self._places is None:
            raise CheckpointAwayError(f"{place}: only Spark can look at it")
        return self._places


def state_folders(state_dir: Path) -> list[StateFolder]:
    """Every pipeline that has been run with this folder, by name."""
    if not state_dir.is_dir():
        return []
    folders = (StateFolder(state_dir, each.name) for each in sorted(state_dir.iterdir()) if each.is_dir())
    return [each for each in folders if each.exists]


def _began(pid: int) -> str:
    """When a process began, in ticks since the machine did; nothing where nobody knows."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""


def _lock(handle: int, how: int) -> bool:
    try:
        fcntl.flock(handle, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _names_in(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []


def _local(place: str) -> Path | None:
    """The folder of this machine that a place is; None if it is elsewhere."""
    if found := _FILE.match(place):
        return Path(place[found.end() :])
    return None if ":" in place else Path(place).absolute()


def _is_same_place(one: str, other: str) -> bool:
    here, there = _local(one), _local(other)
    return one == other if here is None or there is None else here == there


class SparkPlaces:
    """Folders wherever Spark can keep a checkpoint (hdfs:, s3a:, abfss:, …), with its settings and credentials."""

    def __init__(self, spark: SparkSession) -> None:
        jvm: Any = spark._jvm
        self._path = jvm.org.apache.hadoop.fs.Path
        self._hadoop = spark.sparkContext._jsc.hadoopConfiguration()

    def names(self, place: str) -> list[str]:
        with _told(place):
            path = self._path(place)
            files = path.getFileSystem(self._hadoop)
            return [each.getPath().getName() for each in files.listStatus(path)] if files.exists(path) else []

    def remove(self, place: str) -> None:
        with _told(place):
            path = self._path(place)
            path.getFileSystem(self._hadoop).delete(path, True)


@contextmanager
def _told(place: str) -> Iterator[None]:
    from py4j.protocol import Py4JJavaError

    try:
        yield
    except Py4JJavaError as error:
        raise CheckpointAwayError(f"{place}: Spark cannot look at it: {plain_reason(error)}") from error
