"""The embedded coordination store: keys and JSON values in a journal of checksummed lines.

A change is durable when `put` or `delete` returns. A torn end, the mark of a crash, is cut at the next start, also one
that has lost its middle and kept its newline. A damaged line with a good one behind it stops the start with a message,
since what it said cannot be guessed. The journal is written anew when most of it is history.

    9d2f1c03 {"key": "topics/orders", "value": {…}}
    1b6e77aa {"key": "topics/orders", "value": null}
"""

from __future__ import annotations

import json
from typing import Any, Final

from crc32c import crc32c

from clarion.world import Disk, DiskFile, event_log, read_file, replace_file

log = event_log("cluster")

_HISTORY_LINES_MIN: Final = 1_000  # below this, rewriting the journal is not worth the while


class StoreDamagedError(Exception):
    """The journal cannot be believed; a person has to look at it."""


class EmbeddedStore:
    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self._path = path
        self._values: dict[str, Any] = {}
        self._lines = 0
        self._size = 0
        self._file: DiskFile | None = None
        if disk.exists(path):
            self._load(read_file(disk, path))
        self._rewrite_if_mostly_history(at_start=True)

    def get(self, key: str) -> Any:
        return self._values.get(key)

    def items(self, prefix: str) -> list[tuple[str, Any]]:
        return [(key, value) for key, value in self._values.items() if key.startswith(prefix)]

    def put(self, key: str, value: Any) -> None:
        assert value is not None, "None marks a deleted key"
        self._append(key, value)
        self._values[key] = value
        self._shorten()

    def delete(self, key: str) -> None:
        if key in self._values:
            self._append(key, None)
            del self._values[key]
            self._shorten()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _append(self, key: str, value: Any) -> None:
        line = _line(key, value)
        file = self._open()
        try:
            file.write([line], self._size)
            file.sync()
        except OSError:
            file.truncate(self._size)  # a torn line would hide what is written after it
            raise
        self._size += len(line)
        self._lines += 1

    def _shorten(self) -> None:
        """After a change is both in the journal and in memory, from which the journal is written anew.

        That it cannot be written anew just now is no reason to deny the change.
        """
        try:
            self._rewrite_if_mostly_history()
        except OSError as error:
            log.warning("journal_not_rewritten", file=self._path, reason=str(error))

    def _open(self) -> DiskFile:
        if self._file is None:
            self._file = self._disk.open(self._path)
        return self._file

    def _rewrite_if_mostly_history(self, *, at_start: bool = False) -> None:
        is_fresh = at_start and self._lines == 0
        if not is_fresh and self._lines < max(_HISTORY_LINES_MIN, 2 * len(self._values)):
            return
        self.close()
        content = b"".join(_line(key, value) for key, value in self._values.items())
        replace_file(self._disk, self._path, content)
        self._lines, self._size = len(self._values), len(content)

    def _load(self, content: bytes) -> None:
        lines = content.split(b"\n")
        for number, line in enumerate(lines, start=1):
            entry = _read_line(line) if number < len(lines) else None
            if entry is None:
                self._check_torn(lines, number)
                break
            key, value = entry
            if value is None:
                self._values.pop(key, None)
            else:
                self._values[key] = value
            self._lines += 1
            self._size += len(line) + 1
        if self._size < len(content):
            log.warning("torn_line_cut", file=self._path, bytes=len(content) - self._size)
            self._open().truncate(self._size)
            self._open().sync()

    def _check_torn(self, lines: list[bytes], number: int) -> None:
        """The line with this number cannot be read. It is torn if nothing good was ever written behind it."""
        if any(_read_line(line) is not None for line in lines[number:]):
            raise StoreDamagedError(
                f"{self._path}, line {number}: the checksum does not match. Restore the file from a copy, or remove "
                f"the damaged line if you know what it said."
            )


def _line(key: str, value: Any) -> bytes:
    body = json.dumps({"key": key, "value": value}, separators=(",", ":")).encode()
    return b"%08x %s\n" % (crc32c(body), body)


def _read_line(line: bytes) -> tuple[str, Any] | None:
    """None if its checksum does not match."""
    body = line[9:]
    if line[:9] != b"%08x " % crc32c(body):
        return None
    entry = json.loads(body)
    return entry["key"], entry["value"]
