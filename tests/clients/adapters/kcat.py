"""kcat, Debian's package: an older librdkafka behind a command line. It tells no offsets, and has no admin calls."""

import io
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator, Sequence
from itertools import groupby

from tests.clients.adapters.model import (
    EARLIEST,
    LATEST,
    MESSAGE_TOO_LARGE,
    PATIENCE_S,
    UNKNOWN_TOPIC_OR_PARTITION,
    Client,
    Incoming,
    Member,
    Outgoing,
    ProducerStream,
    Refused,
)

# Lengths come before the bytes, so that keys and values may hold anything.
_FORMAT = r"%t %p %o %T %K %S %h\n%k%s\n"
_KEY_END, _MESSAGE_END = "\x1f", "\x1e"
_COMPLAINTS = {
    "Message size too large": MESSAGE_TOO_LARGE,
    "Unknown topic or partition": UNKNOWN_TOPIC_OR_PARTITION,
    "failed to validate record": 87,
}
_ASSIGNED = re.compile(rb"rebalanced .*: (assigned|revoked)(?:: (.*))?")
_PARTITION = re.compile(rb"(\S+) \[(\d+)\]")


class Kcat(Client):
    name = "kcat"
    lost_by_leaving = 1  # the one in its hand when the signal comes: committed, but not printed (with any broker)
    can = frozenset(["groups", "idempotence"])

    @classmethod
    def why_absent(cls) -> str:
        return "" if shutil.which("kcat") else "kcat is not installed (Debian: apt install kcat)"

    def stream(
        self, *, compression: str = "none", idempotent: bool = False, max_bytes: int | None = None
    ) -> ProducerStream:
        options = [f"compression.codec={compression}", f"enable.idempotence={str(idempotent).lower()}"]
        options.append("topic.partitioner=murmur2_random")
        if max_bytes:
            options.append(f"message.max.bytes={max_bytes}")
        return _Stream(self.bootstrap, options)

    def read(
        self, topic: str, partition: int, start: int, count: int, *, seconds: float = PATIENCE_S
    ) -> list[Incoming]:
        offset = {EARLIEST: "beginning", LATEST: "end"}.get(start, str(start))
        command = _kcat(
            self.bootstrap, "-C", "-t", topic, "-p", str(partition), "-o", offset, "-c", str(count), "-f", _FORMAT
        )
        done = subprocess.run(command, capture_output=True, timeout=seconds, check=False)
        _check(done.returncode, done.stderr)
        return list(_parsed(done.stdout))

    def offset_for(self, topic: str, partition: int, timestamp_ms: int) -> int:
        done = subprocess.run(
            _kcat(self.bootstrap, "-Q", "-t", f"{topic}:{partition}:{timestamp_ms}"),
            capture_output=True,
            timeout=PATIENCE_S,
            check=False,
        )
        _check(done.returncode, done.stderr)
        return int(done.stdout.rsplit(b" ", 1)[1])

    def member(self, group: str, topics: Sequence[str], *, instance: str | None = None) -> "KcatMember":
        return KcatMember(self.bootstrap, group, topics)


class _Stream(ProducerStream):
    """kcat sends its standard input; records that differ in partition or headers need a run of their own."""

    def __init__(self, bootstrap: str, options: Sequence[str]) -> None:
        self._bootstrap = bootstrap
        self._options = [part for option in options for part in ("-X", option)]
        self._records: list[tuple[str, Outgoing]] = []

    def send(self, topic: str, record: Outgoing) -> None:
        self._records.append((topic, record))

    def finish(self) -> list[tuple[int, int]]:
        for (topic, partition, headers), records in groupby(
            self._records, lambda sent: (sent[0], sent[1].partition, sent[1].headers)
        ):
            self._run(topic, partition, headers, [record for _, record in records])
        return []

    def _run(self, topic: str, partition: int | None, headers: tuple, records: list[Outgoing]) -> None:
        where = [] if partition is None else ["-p", str(partition)]
        named = [part for name, value in headers for part in ("-H", f"{name}={value.decode()}")]
        command = _kcat(
            self._bootstrap, "-v", "-P", "-t", topic, *where, *named, "-K", r"\x1f", "-D", r"\x1e", *self._options
        )
        done = subprocess.run(command, input=_joined(records), capture_output=True, timeout=PATIENCE_S, check=False)
        _check(done.returncode, done.stderr)


class KcatMember(Member):
    """A running `kcat -G`; it commits by itself, often and when it leaves."""

    def __init__(self, bootstrap: str, group: str, topics: Sequence[str]) -> None:
        options = (
            "auto.offset.reset=earliest",
            "session.timeout.ms=6000",
            "heartbeat.interval.ms=200",
            "auto.commit.interval.ms=50",
        )
        named = [part for option in options for part in ("-X", option)]
        command = [*_kcat(bootstrap, "-G", group, *named, "-u", "-f", _FORMAT), *topics]
        command.remove("-q")  # it says on stderr which partitions it was given
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self._found: list[Incoming] = []
        self._given: set[tuple[str, int]] = set()
        self._read = 0
        self._arrived = threading.Event()
        self._readers = [
            threading.Thread(target=work, daemon=True) for work in (self._read_messages, self._read_events)
        ]
        for reader in self._readers:
            reader.start()

    def poll(self, seconds: float = 0.1) -> list[Incoming]:
        self._arrived.wait(seconds)
        self._arrived.clear()
        news = self._found[self._read :]
        self._read += len(news)
        return news

    def commit(self) -> None:
        pass

    def assignment(self) -> set[tuple[str, int]]:
        return set(self._given)

    def close(self) -> list[Incoming]:
        self._process.terminate()
        self._process.wait(PATIENCE_S)
        for reader in self._readers:
            reader.join(PATIENCE_S)
        return self.poll(0)  # it counts as processed, and is committed, what it has printed

    def _read_messages(self) -> None:
        while message := _read_one(self._process.stdout):
            self._found.append(message)
            self._arrived.set()

    def _read_events(self) -> None:
        for line in self._process.stderr:
            if event := _ASSIGNED.search(line):
                partitions = {(topic.decode(), int(index)) for topic, index in _PARTITION.findall(event[2] or b"")}
                self._given = partitions if event[1] == b"assigned" else set()


def _kcat(bootstrap: str, *args: str) -> list[str]:
    return ["kcat", "-b", bootstrap, "-q", "-X", "reconnect.backoff.max.ms=500", *args]


def _joined(records: Sequence[Outgoing]) -> bytes:
    lines = [
        record.value if record.key is None else record.key + _KEY_END.encode() + record.value for record in records
    ]
    return _MESSAGE_END.encode().join(lines)


def _check(status: int, complaint: bytes) -> None:
    text = complaint.decode(errors="replace")
    for words, code in _COMPLAINTS.items():
        if words in text:
            raise Refused(code, text)
    if status:
        raise Refused(-1, text or f"kcat ended with status {status}")


def _parsed(output: bytes) -> Iterator[Incoming]:
    stream = io.BytesIO(output)
    while message := _read_one(stream):
        yield message


def _read_one(stream) -> Incoming | None:
    head = stream.readline()
    if not head.strip():
        return None
    topic, partition, offset, timestamp, key_bytes, value_bytes, *headers = head.decode().rstrip("\n").split(" ", 6)
    key, value = (None if int(size) < 0 else stream.read(int(size)) for size in (key_bytes, value_bytes))
    stream.read(1)
    return Incoming(topic, int(partition), int(offset), int(timestamp), key, value, _headers("".join(headers)))


def _headers(text: str) -> tuple[tuple[str, bytes], ...]:
    pairs = (pair.partition("=") for pair in text.split(",") if pair)
    return tuple((name, value.encode()) for name, _, value in pairs)
