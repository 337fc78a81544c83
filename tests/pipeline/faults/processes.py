"""The processes of a Spark, found by what they were started with, and killed one by one."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.peers.process import process_tree


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def parent_of(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def task_workers(driver: int) -> list[int]:
    """The Python processes that run tasks: forked by a daemon, which is not one of them."""
    return [each for each in process_tree(driver) if _is_worker(each) and _is_worker(parent_of(each))]


def jvm_of(driver: int) -> int:
    """The JVM that a driver started."""
    return next(each for each in process_tree(driver) if "SparkSubmit" in command_of(each))


def executors_of(driver: int) -> list[int]:
    return [each for each in process_tree(driver) if "CoarseGrainedExecutorBackend" in command_of(each)]


def kill(*pids: int) -> None:
    for pid in pids:
        send(pid, signal.SIGKILL)


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """It stands still within the block, as if time had stopped for it."""
    send(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        send(pid, signal.SIGCONT)


def send(pid: int, what: signal.Signals) -> None:
    assert pid > 1, "0 would be ourselves and everybody around us"
    try:
        os.kill(pid, what)
    except ProcessLookupError:
        pass  # it was faster


def _is_worker(pid: int) -> bool:
    return ".daemon pyspark.worker" in command_of(pid)
