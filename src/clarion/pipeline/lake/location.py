"""Where a table lies: a folder, or a prefix in an object store; as delta-rs and as pyarrow call it.

    lake/events   file:///lake/events   s3://bucket/events   gs://bucket/events   abfss://container@account.…/events

Executors write and read through pyarrow's file systems, the driver commits through delta-rs; both get the same endpoint
and credentials: from the table's options, else from the driver's environment, under the names that delta-rs and the
stores' own tools have for them (`AWS_ENDPOINT_URL` …). Where none are given, each machine uses what it has (a role, a
metadata service). An object is there when its upload is complete, and never half; nothing here is ever renamed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from clarion.pipeline.lake.errors import LakeError, LakeRetryError

if TYPE_CHECKING:
    import pyarrow.fs as fs

SCHEMES: Final = {"s3": "aws_", "gs": "google_", "abfss": "azure_"}
_ALIASES: Final = {"s3a": "s3", "gcs": "gs", "abfs": "abfss"}
_FROM_THE_ENVIRONMENT: Final = {
    "aws_": (
        "aws_access_key_id", "aws_secret_access_key", "aws_session_token", "aws_region", "aws_default_region",
        "aws_endpoint_url", "aws_allow_http", "aws_virtual_hosted_style_request",
    ),
    "google_": ("google_application_credentials",),
    "azure_": ("azure_storage_account_name", "azure_storage_account_key", "azure_storage_sas_token"),
}  # fmt: skip
# A store that is away is told within seconds: whoever runs the pipeline starts it again.
_PATIENCE: Final = {"connect_timeout": "5 s", "timeout": "60 s", "max_retries": "5", "retry_timeout": "60s"}
_CONNECT_SECONDS_MAX: Final = 5
_REQUEST_SECONDS_MAX: Final = 60
_FOR_GOOD: Final = ("NoSuchBucket", "AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "NO_SUCH_BUCKET")
_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True, slots=True)
class Location:
    uri: str  # an absolute folder, or a scheme, a bucket and a prefix
    # Of the object store, by delta-rs' names in lower case. Keys and tokens are among them: not for logs and errors.
    options: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    def __str__(self) -> str:
        return self.uri

    @property
    def is_local(self) -> bool:
        return "://" not in self.uri

    @property
    def storage_options(self) -> dict[str, str] | None:
        """For delta-rs. S3 commits by a conditional put, which is its default there."""
        return None if self.is_local else {**_PATIENCE, **dict(self.options)}

    # Files below it, by their path from here

    def create(self, path: str) -> Any:
        """A new file, open for writing."""
        if not self.is_local:
            return self._store.open_output_stream(self._key(path))
        place = Path(self.uri, path)
        place.parent.mkdir(parents=True, exist_ok=True)
        return place.open("wb")

    def open(self, path: str) -> Any:
        return (
            open(os.path.join(self.uri, path), "rb") if self.is_local else self._store.open_input_file(self._key(path))
        )

    def sizes(self, paths: Sequence[str]) -> list[int | None]:
        """None for a file that is not there."""
        found = self._store.get_file_info([self._key(path) for path in paths]) if paths else []
        return [each.size if each.is_file else None for each in found]

    def remove(self, paths: Iterable[str]) -> None:
        """Those that are there."""
        for path in paths:
            try:
                self._store.delete_file(self._key(path))
            except FileNotFoundError:
                pass

    def files_in(self, folder: str) -> dict[str, int]:
        """The names of its files, and when each was written (in nanoseconds, as far as the store knows)."""
        from pyarrow.fs import FileSelector

        selector = FileSelector(self._key(folder), allow_not_found=True)
        found = (each for each in self._store.get_file_info(selector) if each.is_file)
        return {each.base_name: each.mtime_ns for each in found}

    @property
    def _store(self) -> fs.FileSystem:
        return _file_system(self)

    def _key(self, path: str) -> str:
        if self.is_local:
            return os.path.join(self.uri, path)
        scheme, _, rest = self.uri.partition("://")
        if scheme == "abfss":
            container, _, rest = rest.partition("@")
            rest = container + "/" + rest.partition("/")[2]
        return f"{rest}/{path}"


def locate(where: str | Location, options: Mapping[str, str] | None = None) -> Location:
    """A table's place as it was written down. Relative folders are meant from where this process runs."""
    if isinstance(where, Location):
        return where
    for prefix in ("file://", "file:"):
        if where.startswith(prefix):
            return Location(os.path.abspath(where.removeprefix(prefix)))
    scheme, found, rest = where.partition("://")
    if not found:
        return Location(os.path.abspath(where))
    scheme = _ALIASES.get(scheme, scheme)
    if scheme not in SCHEMES:
        raise LakeError(f"{where}: a table lies in a folder or at {', '.join(f'{each}://' for each in SCHEMES)}")
    if not rest.strip("/").partition("/")[2]:
        raise LakeError(f"{where}: a table needs a name behind the bucket")
    return Location(f"{scheme}://{rest.strip('/')}", _options(SCHEMES[scheme], options or {}))


def is_store_option(name: str) -> bool:
    return name.lower().startswith(tuple(SCHEMES.values()))


def _options(prefix: str, given: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    found = {name: os.environ[name.upper()] for name in _FROM_THE_ENVIRONMENT[prefix] if os.environ.get(name.upper())}
    found |= {name.lower(): value for name, value in given.items() if name.lower().startswith(prefix)}
    if found.get("aws_endpoint_url", "").startswith("http://"):
        found["aws_allow_http"] = "true"
    return tuple(sorted(found.items()))


@cache
def _file_system(location: Location) -> fs.FileSystem:
    """One per process and place: it keeps its connections. Where a table lies is known without pyarrow."""
    import pyarrow.fs as fs

    scheme, options = location.uri.partition("://")[0], dict(location.options)
    if location.is_local:
        return fs.LocalFileSystem()
    if scheme == "gs":
        return fs.GcsFileSystem()
    if scheme == "abfss":
        host = location.uri.partition("@")[2].partition("/")[0]
        return fs.AzureFileSystem(
            options.get("azure_storage_account_name") or host.partition(".")[0],
            account_key=options.get("azure_storage_account_key"),
            sas_token=options.get("azure_storage_sas_token"),
        )
    return fs.S3FileSystem(
        access_key=options.get("aws_access_key_id"),
        secret_key=options.get("aws_secret_access_key"),
        session_token=options.get("aws_session_token"),
        region=options.get("aws_region") or options.get("aws_default_region") or "us-east-1",
        endpoint_override=options.get("aws_endpoint_url"),
        force_virtual_addressing=options.get("aws_virtual_hosted_style_request", "").lower() == "true",
        connect_timeout=_CONNECT_SECONDS_MAX,
        request_timeout=_REQUEST_SECONDS_MAX,
    )


@contextmanager
def telling(location: Location) -> Iterator[None]:
    """What a store has against us in one line, instead of a coloured tree of causes."""
    try:
        yield
    except OSError as error:
        if location.is_local:
            raise
        lines = (_COLOUR.sub("", line).strip(" ↳\t") for line in str(error).splitlines())
        told = f"{location}: {': '.join(filter(None, lines))}"
        raise LakeError(told) if any(word in told for word in _FOR_GOOD) else LakeRetryError(told) from error


def is_table(where: str | Location) -> bool:
    """A folder is looked into before delta-rs is asked, which takes a second to import."""
    place = locate(where)
    if place.is_local and not os.path.isdir(os.path.join(place.uri, "_delta_log")):
        return False
    from clarion.pipeline.lake.delta import exists

    return exists(place)
