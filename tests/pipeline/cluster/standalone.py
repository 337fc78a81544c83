"""A standalone cluster on loopback: one master and its workers, ended by their process ids."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pyspark
from bench.peers.process import free_port, process_tree

from clarion.pipeline.java import find_java
from tests.waiting import wait_for

START_SECONDS_MAX = 120  # 5 on a quiet machine
STOP_SECONDS_MAX = 15
MASTER = "org.apache.spark.deploy.master.Master"
WORKER = "org.apache.spark.deploy.worker.Worker"


class Standalone:
    def __init__(self, folder: Path, workers: int = 2) -> None:
        self.url = f"spark://127.0.0.1:{free_port()}"
        self._folder = folder
        self._workers = workers
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> "Standalone":
        try:
            self._start("master", MASTER, "--host", "127.0.0.1", "--port", self.url.rpartition(":")[2])
            self._wait("master", "I have been elected leader")
            for number in range(self._workers):
                work = self._folder / f"work-{number}"
                self._start(
                    f"worker-{number}", WORKER, "-h", "127.0.0.1", "-c", "1", "-m", "1500m", "-d", work, self.url
                )
            for number in range(self._workers):
                self._wait(f"worker-{number}", "Successfully registered with master")
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Workers first; they take their executors along."""
        for process in reversed(self._processes):
            tree = process_tree(process.pid)
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            for pid in tree[1:]:
                _kill(pid)
        self._processes.clear()

    def _start(self, name: str, main_class: str, *args: object) -> None:
        command = [str(Path(sys.executable).with_name("spark-class")), main_class, *map(str, args), "--webui-port", "0"]
        environment = {
            **os.environ,
            "JAVA_HOME": str(find_java().home),
            "SPARK_HOME": str(Path(pyspark.__file__).parent),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_WORKER_DIR": str(self._folder),
        }
        environment.pop("PYTHONPATH", None)
        with self._log(name).open("wb") as log:
            self._processes.append(subprocess.Popen(command, stdout=log, stderr=log, env=environment, cwd=self._folder))

    def _wait(self, name: str, words: str) -> None:
        def has_said() -> bool:
            said = self._log(name).read_text()
            assert all(each.poll() is None for each in self._processes), said[-4000:]
            return words in said

        wait_for(has_said, seconds=START_SECONDS_MAX, what=f"{name}: {words}")

    def _log(self, name: str) -> Path:
        return self._folder / f"{name}.log"


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
