"""`clarion doctor`: is this machine fit to run a broker? Each check measures and gives advice."""

from __future__ import annotations

import errno
import os
import platform
import resource
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from glob import escape as glob_escape
from glob import glob
from importlib.metadata import PackageNotFoundError, requires, version
from sysconfig import get_config_var
from typing import Annotated

import typer

from clarion import compiled
from clarion.cli.errors import CliError
from clarion.cli.link import JsonOption
from clarion.cli.listeners import parse_address
from clarion.cli.table import Column, show_rows
from clarion.cli.units import bytes_text, duration_text, time_text
from clarion.log.folder import DAMAGED

_FILES_WANTED = 20_000  # ten thousand connections and as many segment files
_FREE_BYTES_LOW = 5_000_000_000
_FREE_BYTES_MIN = 200_000_000
_NAMED_MAX = 5
_SYNCS = 30
_SYNC_SLOW_MS = 20.0
_FOR_DEVELOPERS = ("bench", "dev")  # extras that nobody needs who only uses Clarion
_YEAR_OF_THIS_CODE = 2026
_MARKS = {"ok": "✓ ok", "warn": "! warn", "fail": "✗ fail"}


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    status: str  # ok, warn or fail
    found: str
    advice: str = ""


def add_to(app: typer.Typer) -> None:
    app.command()(doctor)


def doctor(
    data_dir: Annotated[
        str, typer.Option(metavar="DIR", help="Where the broker would keep its data.")
    ] = "clarion-data",
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where it would listen.")] = "127.0.0.1:9092",
    as_json: JsonOption = False,
) -> None:
    """Check whether this machine is fit to run a broker. Exit status 1 if it is not.

    Example:

        clarion doctor --data-dir clarion-data
    """
    checks = [
        _python(), _hot_path(), _event_loop(), _open_files(), *_data_folder(data_dir), _clock(), _port(listen),
        *_packages(), *_spark(),
    ]  # fmt: skip
    columns = [
        Column("name", "CHECK", style="cyan"),
        Column("status", "STATUS", _MARKS.__getitem__),
        Column("found", "FOUND"),
        Column("advice", "ADVICE"),
    ]
    show_rows([asdict(each) for each in checks], columns, as_json=as_json)
    failed = [each.name for each in checks if each.status == "fail"]
    if failed:
        raise CliError(f"not fit to run a broker: {', '.join(failed)}")


def _python() -> Check:
    found = platform.python_version()
    if is_slow_build():
        advice = "a build with --enable-optimizations, such as the system's own, can be up to 50 % faster"
        return Check("python", "warn", f"{found}, not optimised", advice)
    return Check("python", "ok", found)


def _hot_path() -> Check:
    if compiled.in_use():
        return Check("hot path", "ok", "compiled")
    advice = "small requests take half the processor time when it is compiled: `make compile` in a checkout"
    return Check("hot path", "warn", "not compiled", advice)


def is_slow_build() -> bool:
    """A Python that was compiled the quick way, as pyenv does unless told otherwise. Distributions optimise theirs."""
    return sys.base_prefix != "/usr" and "--enable-optimizations" not in (get_config_var("CONFIG_ARGS") or "")


def _event_loop() -> Check:
    if not _is_installed("uvloop"):
        return Check("uvloop", "fail", "missing", "pip install uvloop")
    return Check("uvloop", "ok", version("uvloop"))


def _open_files() -> Check:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= _FILES_WANTED:
        return Check("open files", "ok", f"{soft:,}")
    raise_to = min(hard, 65_536) if hard != resource.RLIM_INFINITY else 65_536
    status = "warn" if soft >= 256 else "fail"
    return Check("open files", status, f"{soft:,}", f"for many clients or partitions: ulimit -n {raise_to}")


def _data_folder(data_dir: str) -> Iterator[Check]:
    """Whatever exists of the path decides: the folder itself is made by `serve`."""
    folder = os.path.abspath(os.path.expanduser(data_dir))
    while not os.path.exists(folder):
        folder = os.path.dirname(folder)
    if not os.path.isdir(folder) or not os.access(folder, os.W_OK | os.X_OK):
        yield Check("data dir", "fail", f"cannot write to {folder}", "choose another --data-dir, or mend its rights")
        return
    yield Check("data dir", "ok", f"{folder} can be written")
    yield _free_space(folder)
    yield from _damage(folder)
    yield _file_system(folder)
    yield _sync_speed(folder)


def _free_space(folder: str) -> Check:
    free = shutil.disk_usage(folder).free
    status = "ok" if free >= _FREE_BYTES_LOW else "warn" if free >= _FREE_BYTES_MIN else "fail"
    advice = "" if status == "ok" else "make room, or set retention.ms and retention.bytes"
    return Check("free space", status, bytes_text(free), advice)


def _damage(folder: str) -> Iterator[Check]:
    """What a broker has noted of its partitions; where there is one, or several in folders of their own."""
    found = sorted(glob(f"{glob_escape(folder)}/*/{DAMAGED}") + glob(f"{glob_escape(folder)}/*/*/{DAMAGED}"))
    if found:
        names = ", ".join(os.path.basename(os.path.dirname(one)) for one in found[:_NAMED_MAX])
        more = f" and {len(found) - _NAMED_MAX} more" if len(found) > _NAMED_MAX else ""
        advice = "see docs/operations.md: a cluster fills them anew; alone, restore a backup"
        yield Check("data", "warn", f"damaged: {names}{more}", advice)


def _file_system(folder: str) -> Check:
    kind = _file_system_kind(folder)
    if kind in ("tmpfs", "ramfs"):
        return Check("file system", "warn", kind, "memory only: everything is gone after a restart of the machine")
    if kind in ("nfs", "nfs4", "cifs", "fuse.sshfs"):
        return Check("file system", "warn", kind, "a network file system: locks and fsync may not mean what they say")
    return Check("file system", "ok", kind)


def _file_system_kind(folder: str) -> str:
    """The mount with the longest path above the folder."""
    try:
        with open("/proc/self/mounts") as mounts:
            entries = [line.split()[1:3] for line in mounts]
    except OSError:
        return "unknown"
    real = os.path.realpath(folder) + "/"
    above = [(len(place), kind) for place, kind in entries if real.startswith(place.rstrip("/") + "/")]
    return max(above, default=(0, "unknown"))[1]


def _sync_speed(folder: str) -> Check:
    try:
        times = sorted(_sync_times(folder))
    except OSError as error:
        return Check("fsync", "fail", str(error.strerror), "the disk cannot make data durable here")
    median, worst = times[len(times) // 2], times[-1]
    found = f"{duration_text(median)} (slowest of {len(times)}: {duration_text(worst)})"
    if median <= _SYNC_SLOW_MS:
        return Check("fsync", "ok", found)
    return Check("fsync", "warn", found, "acks=all waits for this; a faster disk, or --durability page-cache")


def _sync_times(folder: str) -> Iterator[float]:
    with tempfile.TemporaryFile(dir=folder) as file:
        for _ in range(_SYNCS):
            file.write(bytes(4096))
            file.flush()
            begin = time.perf_counter()
            os.fdatasync(file.fileno())
            yield (time.perf_counter() - begin) * 1000


def _clock() -> Check:
    now_ms = time.time_ns() // 1_000_000
    is_sane = time.gmtime(now_ms / 1000).tm_year >= _YEAR_OF_THIS_CODE
    advice = "" if is_sane else "set the clock: retention and search by time depend on it"
    return Check("clock", "ok" if is_sane else "warn", time_text(now_ms), advice)


def _port(listen: str) -> Check:
    host, port = parse_address(listen, "--listen")
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.create_server((host, port), family=family):
            return Check("port", "ok", f"{listen} is free")
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return Check("port", "warn", f"{listen} is taken", "by a running broker? else choose another --listen")
        return Check("port", "fail", f"{listen}: {error.strerror or error}", "choose another --listen")


def _packages() -> Iterator[Check]:
    """What we are built on, from our own metadata; and the extras, with the way to get them."""
    extras: dict[str, list[str]] = {}
    missing: list[str] = []
    for wanted in requires("clarion-broker") or ():
        name, extra = _requirement(wanted)
        if not _is_installed(name):
            (extras.setdefault(extra, []) if extra else missing).append(name)
    if missing:
        yield Check("packages", "fail", f"missing: {', '.join(missing)}", f"pip install {' '.join(missing)}")
    else:
        yield Check("packages", "ok", f"all there, clarion {version('clarion-broker')}")
    for extra, names in sorted(extras.items()):
        if extra in _FOR_DEVELOPERS:
            continue
        advice = f"only if you want it: pip install 'clarion-broker[{extra}]'"
        yield Check(f"extra {extra}", "ok", f"not installed: {', '.join(names)}", advice)


def _spark() -> Iterator[Check]:
    from clarion.pipeline.doctor import check_spark

    yield from (Check(each.name, each.status, each.found, each.advice) for each in check_spark())


def _requirement(text: str) -> tuple[str, str]:
    """`rich>=14; extra == "bench"` → name and extra."""
    name_and_version, _, marker = text.partition(";")
    name = name_and_version.strip()
    for index, character in enumerate(name):
        if not (character.isalnum() or character in "-_."):
            name = name[:index]
            break
    return name, marker.partition("extra == ")[2].strip(" \"'")


def _is_installed(name: str) -> bool:
    try:
        version(name)
    except PackageNotFoundError:
        return False
    return True
