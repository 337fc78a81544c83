"""The options of a table sink, by the names that people write; an unknown name is refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from clarion.pipeline.lake.errors import LakeError
from clarion.pipeline.lake.location import Location, is_store_option, locate

MIB = 1 << 20
CODECS = ("zstd", "snappy", "lz4", "gzip", "none")

# Spark hands these to every sink; they mean nothing to a table.
_SPARKS_OWN = frozenset({"checkpointlocation", "queryname", "outputmode"})


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOptions:
    path: str
    partition_by: tuple[str, ...] | None = None  # None: as the table is; a new one is not partitioned
    target_file_bytes: int = 128 * MIB  # large enough to scan fast, small enough to rewrite when compacting
    compression: str = "zstd"  # smaller than snappy at nearly its speed for text and JSON
    merge_schema: bool = True
    app_id: str | None = None  # with `version`: a batch write that is there already is skipped
    version: int | None = None  # of the writer's batch; for reading, of the table
    source_columns: tuple[str, ...] = ()  # topic, topic id, partition, offset: rows are also known by their origin
    compact_every: int = 0  # batches between looks at small files; 0: never
    vacuum_hours: int = 0  # age at which replaced files go, looked at now and then after a compaction; 0: never
    sync: bool = True  # files reach the disk before the commit that names them
    store: tuple[tuple[str, str], ...] = field(default=(), repr=False)  # options of an object store, keys among them
    checkpoint: str | None = None  # of the stream that writes
    refresh: bool = False  # for reading: what is in the table when it is read, not when the query was planned

    @property
    def location(self) -> Location:
        return locate(self.path, dict(self.store))


def read_options(options: Mapping[str, str], *, for_reading: bool = False) -> TableOptions:
    """Check what was given at the door."""
    names = _FOR_READING if for_reading else _NAMES
    given = {name.lower(): value for name, value in options.items() if name.lower() not in _SPARKS_OWN}
    store = {name: given.pop(name) for name in list(given) if is_store_option(name)}
    unknown = sorted(set(given) - set(names))
    if unknown:
        raise LakeError(f"a table has no option {', '.join(unknown)}; it has {', '.join(sorted(names.values()))}")
    if not given.get("path", "").strip():
        raise LakeError("a table needs its folder: .save(path), .start(path) or .option('path', ...)")
    location = locate(given["path"].strip(), store)
    return TableOptions(
        path=location.uri,
        store=location.options,
        partition_by=None if "partitionby" not in given else _names(given["partitionby"]),
        target_file_bytes=_number("targetFileBytes", given.get("targetfilebytes", str(128 * MIB)), at_least=MIB),
        compression=_one_of("compression", given.get("compression", "zstd"), CODECS),
        merge_schema=_switch("mergeSchema", given.get("mergeschema", "true")),
        app_id=given.get("txnappid"),
        version=_number("version", given["version"], at_least=0) if "version" in given else _version(given),
        source_columns=_source_columns(given.get("sourcecolumns", "")),
        compact_every=_number("compactEvery", given.get("compactevery", "0"), at_least=0),
        vacuum_hours=_number("vacuumHours", given.get("vacuumhours", "0"), at_least=0),
        sync=_switch("sync", given.get("sync", "true")),
        checkpoint=next((value for name, value in options.items() if name.lower() == "checkpointlocation"), None),
        refresh=_switch("refresh", given.get("refresh", "false")),
    )


_NAMES = {
    name.lower(): name
    for name in (
        "path", "partitionBy", "targetFileBytes", "compression", "mergeSchema", "txnAppId", "txnVersion",
        "sourceColumns", "compactEvery", "vacuumHours", "sync",
    )
}  # fmt: skip
_FOR_READING = {name: name for name in ("path", "version", "refresh")}


def _version(given: Mapping[str, str]) -> int | None:
    if ("txnappid" in given) != ("txnversion" in given):
        raise LakeError("txnAppId and txnVersion belong together: one names the writer, the other its batch")
    return _number("txnVersion", given["txnversion"], at_least=0) if "txnversion" in given else None


def _source_columns(text: str) -> tuple[str, ...]:
    names = _names(text)
    if names and len(names) != 4:
        raise LakeError(f"sourceColumns={text}: four columns are wanted: topic, topic id, partition, offset")
    return names


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _one_of(name: str, value: str, choices: tuple[str, ...]) -> str:
    if value.lower() not in choices:
        raise LakeError(f"{name}={value}: one of {', '.join(choices)} is wanted")
    return value.lower()


def _number(name: str, value: str, *, at_least: int) -> int:
    if not value.strip().isdigit() or int(value) < at_least:
        raise LakeError(f"{name}={value}: a whole number of at least {at_least} is wanted")
    return int(value)


def _switch(name: str, value: str) -> bool:
    if value.strip().lower() not in ("true", "false"):
        raise LakeError(f"{name}={value}: true or false is wanted")
    return value.strip().lower() == "true"
