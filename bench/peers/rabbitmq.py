"""RabbitMQ, from Debian's `rabbitmq-server`: one node with quorum queues, which flush what they acknowledge.

Its own name service (epmd) is started beside it, on a port of its own, so that nothing stays behind as a daemon.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from bench.amqp import AmqpConnection
from bench.peers.process import PeerUnavailable, ServerProcess, die_with_the_harness, free_port

_SCRIPT = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")  # the one on the PATH changes the user first


class RabbitServer(ServerProcess):
    """One node on 127.0.0.1; ready when it takes a connection and opens a channel."""

    name = "rabbitmq"

    def __init__(self, data_dir: Path, port: int = 0, fsync: bool = True) -> None:
        super().__init__(data_dir, port)
        self._dist_port, self._names_port = free_port(), free_port()
        self._names: subprocess.Popen[bytes] | None = None

    def prepare(self) -> None:
        if not _SCRIPT.exists() or shutil.which("epmd") is None:
            raise PeerUnavailable("RabbitMQ is not installed (apt-get install rabbitmq-server)")
        (self.data_dir / "plugins").write_text("[].\n")

    def command(self) -> Sequence[str]:
        return (str(_SCRIPT),)

    def environment(self) -> dict[str, str]:
        folder = str(self.data_dir)
        own = {
            "HOME": folder,  # where Erlang keeps its cookie
            "RABBITMQ_NODENAME": f"bench{self.port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(self._dist_port),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
            "RABBITMQ_MNESIA_BASE": folder,
            "RABBITMQ_LOG_BASE": folder,
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{folder}/plugins",
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            "ERL_EPMD_PORT": str(self._names_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
        }
        others = {name: value for name, value in os.environ.items() if not name.startswith(("RABBITMQ_", "ERL_"))}
        return others | own

    def launch(self) -> None:
        quiet = subprocess.DEVNULL
        self._names = subprocess.Popen(
            ["epmd"], stdin=quiet, stdout=quiet, stderr=quiet, env=self.environment(), preexec_fn=die_with_the_harness
        )
        super().launch()

    def wait_until_ready(self, deadline: float) -> None:
        self.poll_until(self._answers, deadline)

    def stop(self) -> None:
        super().stop()
        self._end_names()

    def kill(self) -> None:
        super().kill()
        self._end_names()

    def _end_names(self) -> None:
        if self._names is not None:
            self._names.terminate()
            self._names.wait()
            self._names = None

    def _answers(self) -> bool:
        try:
            AmqpConnection(self.address, 2.0).close()
        except OSError:
            return False
        return True
