"""`make cluster`: three brokers of one cluster on this machine, in a temporary folder that goes with them.

Where etcd is installed (Debian's `etcd-server`) the brokers agree through a real one, started here; elsewhere through
the store that `clarion serve --brokers` has itself. What dies is started anew, also the supervisor of the brokers.
Ctrl-C, or the end of the terminal, ends everything.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

STOP_SECONDS = 30
LOOK_SECONDS = 0.2


def main() -> int:
    argparse.ArgumentParser(prog="make cluster", description=__doc__).parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with ExitStack() as taken:
        folder = Path(taken.enter_context(tempfile.TemporaryDirectory(prefix="clarion-cluster-")))
        words = ["--brokers", "3", "--data-dir", str(folder / "data"), "--log-level", "warning"]
        if shutil.which("etcd"):
            words += ["--cluster", f"etcd://{taken.enter_context(etcd(folder / 'etcd'))}"]
        else:
            print("no etcd here (apt-get install etcd-server): the brokers share a store of their own", flush=True)
        clarion = Path(sys.executable).with_name("clarion")
        try:
            return serve([str(clarion), "serve", *words])
        except KeyboardInterrupt:
            return 0


def serve(words: list[str]) -> int:
    """Until it ends by itself. Its brokers end without it, and hold their folders until they have stopped."""
    patience_until = 0.0
    while True:
        with running(words) as supervisor:
            code = supervisor.wait()
        if code < 0:
            print("clarion serve died and is started anew", flush=True)
            patience_until = time.monotonic() + STOP_SECONDS
        elif code == 0 or time.monotonic() > patience_until:
            return code
        time.sleep(LOOK_SECONDS)


@contextmanager
def etcd(folder: Path) -> Iterator[str]:
    """Its address."""
    client, peer = (f"127.0.0.1:{port}" for port in free_ports(2))
    words = ["etcd", "--name", "one", "--data-dir", str(folder), "--log-level", "error"]
    words += ["--listen-client-urls", f"http://{client}", "--advertise-client-urls", f"http://{client}"]
    words += ["--listen-peer-urls", f"http://{peer}", "--initial-advertise-peer-urls", f"http://{peer}"]
    words += ["--initial-cluster", f"one=http://{peer}"]
    # In a session of its own: Ctrl-C is for the brokers, which need it until they have stopped.
    with kept_running(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True):
        yield client


@contextmanager
def kept_running(words: list[str], **how: Any) -> Iterator[None]:
    """A process that is started anew when it dies, until the block ends."""
    ending = threading.Event()

    def keep() -> None:
        while not ending.is_set():
            process = subprocess.Popen(words, **how)
            while process.poll() is None and not ending.wait(LOOK_SECONDS):
                pass
            end(process)
            if not ending.is_set():
                print(f"{words[0]} died and is started anew", flush=True)

    keeper = threading.Thread(target=keep)
    keeper.start()
    try:
        yield
    finally:
        ending.set()
        keeper.join()


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


@contextmanager
def running(words: list[str], **how: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A process that does not outlive the block."""
    process = subprocess.Popen(words, **how)
    try:
        yield process
    finally:
        end(process)


def end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


if __name__ == "__main__":
    sys.exit(main())
