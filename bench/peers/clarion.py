"""Clarion itself: `clarion serve` as a user starts it, on a free port, with the durability a row asks for."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.peers.kafka import answers_api_versions
from bench.peers.process import PeerUnavailable, ServerProcess
from clarion.compiled import VARIABLE as COMPILED


def command_path() -> Path:
    """The `clarion` command beside this Python."""
    path = Path(sys.executable).parent / "clarion"
    if not path.exists():
        raise PeerUnavailable("the clarion command is not installed (make setup)")
    return path


class ClarionServer(ServerProcess):
    """One broker process; ready when it answers ApiVersions, which is when it prints its line."""

    name = "clarion"

    def __init__(self, data_dir: Path, port: int = 0, fsync: bool = False) -> None:
        super().__init__(data_dir, port)
        self.fsync = fsync
        self.more: tuple[str, ...] = ()  # options of a row's own

    def command(self) -> Sequence[str]:
        return (
            str(command_path()), "serve", "--data-dir", str(self.data_dir), "--listen", f"127.0.0.1:{self.port}",
            "--durability", "fsync" if self.fsync else "page-cache", *self.more,
        )  # fmt: skip

    def environment(self) -> dict[str, str]:
        # Settings of whoever runs the bench must not leak into the broker under test; one that keeps Python from
        # storing compiled modules doubles the time of a start. Whether the hot path is compiled is theirs to say.
        leaking = ("CLARION_", "PYTHONDONTWRITEBYTECODE")
        return {name: value for name, value in os.environ.items() if name == COMPILED or not name.startswith(leaking)}

    def wait_until_ready(self, deadline: float) -> None:
        self.poll_until(lambda: answers_api_versions(self.address), deadline)
