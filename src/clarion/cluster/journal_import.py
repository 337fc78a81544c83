"""The registry as older versions kept it, a journal of checksummed JSON lines, is taken over into the store.

    9d2f1c03 {"key": "topics/orders", "value": {…}}
    1b6e77aa {"key": "topics/orders", "value": null}

Until the cluster's id is in the store, the journal is what counts, and taking it over begins anew after a crash; from
then on the store is. Afterwards the journal has another name, and a folder has its old one, so that an older version
refuses to start instead of making a registry of its own: a file with a bad line in it, it would cut.
"""

from __future__ import annotations

import json
import os
from typing import Any, Final

from clarion.cluster.coordination import CoordinationStore, Delete, Operation, Put, in_transactions
from clarion.cluster.schema import CLUSTER_ID
from clarion.cluster.sqlite_database import StoreDamagedError
from clarion.wire.checksum import crc32c
from clarion.world import Disk, event_log, make_lasting_folder, read_file

log = event_log("cluster")

JOURNAL: Final = "registry.journal"
IMPORTED: Final = "registry.journal.imported"
_IGNORED: Final = "registry.journal.ignored"
_TEXTS: Final = (CLUSTER_ID, "deleting/")  # what stands in the store as plain text, and in the journal in quotes


async def import_journal(disk: Disk, data_dir: str, store: CoordinationStore) -> None:
    """Does nothing where there is no journal, or none any more. Safe to be interrupted anywhere."""
    path = os.path.join(data_dir, JOURNAL)
    if _is_file(disk, path):
        if await store.get(CLUSTER_ID) is None:
            values = read_journal(read_file(disk, path), path)
            await _take_over(values, store)
            log.info("journal_imported", file=path, keys=len(values))
        _put_aside(disk, data_dir)
    make_lasting_folder(disk, path)


def read_journal(content: bytes, path: str) -> dict[str, Any]:
    """What the journal says. A torn end, the mark of a crash, counts as never written."""
    values: dict[str, Any] = {}
    lines = content.split(b"\n")
    for number, line in enumerate(lines, start=1):
        entry = _read_line(line) if number < len(lines) else None
        if entry is None:
            _check_torn(lines, number, path)
            break
        key, value = entry
        if value is None:
            values.pop(key, None)
        else:
            values[key] = value
    return values


async def _take_over(values: dict[str, Any], store: CoordinationStore) -> None:
    """The store becomes what the journal says; its cluster id comes last, and says that all the rest is there."""
    rest: list[Operation] = [Delete(entry.key) for entry in (await store.range("")).entries if entry.key not in values]
    rest += [Put(key, _as_bytes(key, value)) for key, value in values.items() if key != CLUSTER_ID]
    for part in in_transactions(rest):
        await store.transact((), part)
    if CLUSTER_ID in values:
        await store.transact((), [Put(CLUSTER_ID, _as_bytes(CLUSTER_ID, values[CLUSTER_ID]))])


def _put_aside(disk: Disk, data_dir: str) -> None:
    """A second journal can only be what an older version began anew between two steps of an import, and refused."""
    is_first = not disk.exists(os.path.join(data_dir, IMPORTED))
    name = IMPORTED if is_first else _IGNORED
    if not is_first:
        log.warning("journal_ignored", now=name, reason="the registry was taken over from another one before")
    disk.rename(os.path.join(data_dir, JOURNAL), os.path.join(data_dir, name))
    disk.sync_folder(data_dir)


def _is_file(disk: Disk, path: str) -> bool:
    if not disk.exists(path):
        return False
    try:
        disk.names(path)
    except (NotADirectoryError, FileNotFoundError):
        return True
    return False


def _as_bytes(key: str, value: Any) -> bytes:
    if key.startswith(_TEXTS):
        return str(value).encode()
    return json.dumps(value, separators=(",", ":")).encode()


def _check_torn(lines: list[bytes], number: int, path: str) -> None:
    """The line with this number cannot be read. It is torn if nothing good was ever written behind it."""
    if any(_read_line(line) is not None for line in lines[number:]):
        raise StoreDamagedError(
            f"{path}, line {number}: the checksum does not match. Restore the file from a copy, or remove "
            f"the damaged line if you know what it said"
        )


def _read_line(line: bytes) -> tuple[str, Any] | None:
    """None if its checksum does not match."""
    body = line[9:]
    if line[:9] != b"%08x " % crc32c(body):
        return None
    entry = json.loads(body)
    return entry["key"], entry["value"]
