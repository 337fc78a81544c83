"""Apache Kafka 4.3: its jars from Maven Central, one KRaft process (broker and controller), and its command-line tools.

Default settings, but for what one node needs (replication factor 1), quick deletion of what a round wrote, and
`log.flush.interval.messages=1` where a row asks for fsync.
"""

from __future__ import annotations

import socket
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path

from bench.peers.maven import Jars, need
from bench.peers.process import ROOT, PeerUnavailable, ServerProcess, free_port

VERSION = "4.3.0"
CACHE = ROOT / ".cache" / f"kafka-{VERSION}"
TOPIC_COMMAND = "org.apache.kafka.tools.TopicCommand"
DUMP_LOG = "org.apache.kafka.tools.DumpLogSegments"
CONFIG_COMMAND = "kafka.admin.ConfigCommand"
CONSUMER_GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
CONSOLE_PRODUCER = "org.apache.kafka.tools.ConsoleProducer"
CONSOLE_CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"

_DOWNLOAD_WITHIN_S = 240  # about 110 MB of jars on a slow line
_ARTIFACTS = (
    ("org.apache.kafka", "kafka_2.13", VERSION),
    ("org.apache.kafka", "kafka-tools", VERSION),
    ("org.apache.logging.log4j", "log4j-slf4j-impl", "2.25.1"),
    ("org.apache.logging.log4j", "log4j-core", "2.25.1"),
)
_CLUSTER_ID = "Y2xhcmlvbi1iZW5jaC0wMQ"  # any 16 bytes in URL-safe base64 without padding
_SERVER_JVM = ("-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35",
               "-XX:+ExplicitGCInvokesConcurrent", "-Djava.awt.headless=true")  # fmt: skip
_TOOL_JVM = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_LOG4J = """<Configuration status="OFF"><Appenders><Console name="out" target="SYSTEM_OUT">
<PatternLayout pattern="%d %p %c{1} %m%n"/></Console></Appenders>
<Loggers><Root level="WARN"><AppenderRef ref="out"/></Root></Loggers></Configuration>
"""

_STORE = Jars("Apache Kafka", CACHE, _ARTIFACTS, within_s=_DOWNLOAD_WITHIN_S)


def jars() -> list[Path]:
    """Every jar of the server and its tools, fetched once into the cache; PeerUnavailable says why there are none."""
    found = _STORE.paths()
    need("java")
    return found


def run_tool(
    main_class: str, args: Sequence[str], *, stdin: str | None = None, timeout_s: float = 60
) -> subprocess.CompletedProcess[str]:
    """One of Kafka's own command-line tools, by main class; the caller looks at returncode, stdout and stderr."""
    command = tool_command(main_class, args)
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=timeout_s, check=False)


def tool_command(main_class: str, args: Sequence[str]) -> list[str]:
    """How to start a tool that runs until it is told to stop."""
    log4j = f"-Dlog4j2.configurationFile={_log4j_file()}"
    return [need("java"), *_TOOL_JVM, log4j, "-cp", _classpath(), main_class, *args]


class KafkaServer(ServerProcess):
    """One Kafka process on 127.0.0.1 with its own data directory; ready when it answers ApiVersions."""

    name = "kafka"
    formatting: Sequence[str] = ("--standalone",)

    def __init__(self, data_dir: Path, port: int = 0, fsync: bool = False, heap: str = "1g") -> None:
        super().__init__(data_dir, port)
        self.controller_port = free_port()
        self.fsync = fsync
        self.heap = heap

    def prepare(self) -> None:
        self._settings_path.write_text("".join(f"{name}={value}\n" for name, value in self.settings().items()))
        if (self.data_dir / "meta.properties").exists():
            return
        done = run_tool(
            "kafka.tools.StorageTool",
            ["format", "--cluster-id", _CLUSTER_ID, "--config", str(self._settings_path), *self.formatting],
        )
        if done.returncode:
            raise PeerUnavailable(f"Kafka could not format its storage: {(done.stderr or done.stdout).strip()[-200:]}")

    def command(self) -> Sequence[str]:
        logging = f"-Dlog4j2.configurationFile={_log4j_file()}"
        memory = (f"-Xmx{self.heap}", f"-Xms{self.heap}")
        return (
            need("java"),
            *memory,
            *_SERVER_JVM,
            logging,
            "-cp",
            _classpath(),
            "kafka.Kafka",
            str(self._settings_path),
        )

    def wait_until_ready(self, deadline: float) -> None:
        self.poll_until(lambda: answers_api_versions(self.address), deadline)

    @property
    def _settings_path(self) -> Path:
        return self.data_dir.parent / f"{self.data_dir.name}.server.properties"

    def settings(self) -> dict[str, str]:
        settings = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.bootstrap.servers": f"127.0.0.1:{self.controller_port}",
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{self.controller_port}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self.port}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": str(self.data_dir),
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            "log.segment.delete.delay.ms": "500",  # rounds would otherwise fill the tmpfs for a minute after deletion
        }
        if self.fsync:
            settings["log.flush.interval.messages"] = "1"
        return settings


def answers_api_versions(address: tuple[str, int], within_s: float = 2.0) -> bool:
    """Whether somebody at this address answers ApiVersions v0 (no body, no error)."""
    request = struct.pack(">ihhih", 10, 18, 0, 1, -1)
    try:
        with socket.create_connection(address, within_s) as connection:
            connection.sendall(request)
            head = connection.recv(10, socket.MSG_WAITALL)
    except OSError:
        return False
    return len(head) == 10 and struct.unpack(">iih", head)[1:] == (1, 0)


def _classpath() -> str:
    return ":".join(map(str, jars()))


def _log4j_file() -> Path:
    path = CACHE / "log4j2.xml"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_LOG4J)
    return path
