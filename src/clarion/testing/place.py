"""Where an embedded broker lives: its folder and its port, kept from the first start to the end."""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from typing import Final

from clarion.testing.folder import TemporaryFolder

HOST: Final = "127.0.0.1"


class Place:
    """`port` is 0 until the broker has one."""

    def __init__(self, data_dir: str | Path | None, port: int) -> None:
        self._reserved = _reserve(port)
        self._folder = TemporaryFolder() if data_dir is None else None
        self.data_dir = self._folder.data if self._folder else Path(data_dir or "")
        self.port = self._reserved.getsockname()[1] if self._reserved else port

    def give_back(self) -> None:
        if self._reserved is not None:
            self._reserved.close()
        if self._folder is not None:
            self._folder.remove()


def _reserve(port: int) -> socket.socket | None:
    """Hold a port without listening: nobody else gets it while the broker is down, and whoever connects is refused."""
    if sys.platform != "linux":
        return None  # elsewhere two sockets cannot share an address like this
    reserved = socket.socket()
    try:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind((HOST, port))
    except BaseException:
        reserved.close()
        raise
    return reserved
