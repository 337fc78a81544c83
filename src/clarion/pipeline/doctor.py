"""What Spark needs and whether it is here, for `clarion doctor`. Nothing is started, nothing heavy is imported."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from clarion.pipeline.java import Java, JavaMissingError, find_java

PYSPARK_MIN, PYSPARK_BELOW = (4, 2), (4, 4)  # 4.2 brought admission control; newer than 4.3 nobody has tried
PYARROW_MIN = 18
_MEMORY_BYTES_MIN = 2_000_000_000  # a driver's JVM takes 0.8 GB, its Python workers half as much again
_EXTRA = "pip install 'clarion-broker[spark]'"


@dataclass(frozen=True, slots=True)
class Finding:
    name: str
    status: str  # ok or warn: a broker runs without Spark
    found: str
    advice: str = ""


def check_spark() -> Iterator[Finding]:
    """A line per thing that pipelines need; none where Spark is not installed, for the extras are listed already."""
    if _version("pyspark") is None:
        return
    yield _pyspark()
    yield _pyarrow()
    yield _java()
    yield _lake()
    yield _memory()


def _pyspark() -> Finding:
    found = _version("pyspark") or ""
    if PYSPARK_MIN <= _numbers(found) < PYSPARK_BELOW:
        return Finding("spark pyspark", "ok", found)
    return Finding("spark pyspark", "warn", found, f"pipelines are tested with 4.3: {_EXTRA}")


def _pyarrow() -> Finding:
    found = _version("pyarrow")
    if found and _numbers(found)[0] >= PYARROW_MIN and _version("numpy"):
        return Finding("spark pyarrow", "ok", f"{found}, numpy {_version('numpy')}")
    return Finding("spark pyarrow", "warn", found or "missing", f"the connector needs pyarrow and numpy: {_EXTRA}")


def _java() -> Finding:
    try:
        java = find_java()
    except JavaMissingError as error:
        return Finding("spark java", "warn", "missing", str(error))
    return Finding("spark java", "ok", _described(java))


def _described(java: Java) -> str:
    shim = ", through a shim" if java.is_shim else ""
    return f"{java.version} from {java.origin} ({java.real}{shim})"


def _lake() -> Finding:
    found = _version("deltalake")
    if found:
        return Finding("spark deltalake", "ok", found)
    return Finding("spark deltalake", "warn", "missing", f"needed for Delta tables: {_EXTRA}")


def _memory() -> Finding:
    free = _available_bytes()
    if free is None or free >= _MEMORY_BYTES_MIN:
        return Finding("spark memory", "ok", "unknown" if free is None else f"{free / 1e9:.1f} GB free")
    return Finding("spark memory", "warn", f"{free / 1e9:.1f} GB free", "Spark wants about 2 GB for itself")


def _available_bytes() -> int | None:
    try:
        with open("/proc/meminfo") as lines:
            kilobytes = next(int(each.split()[1]) for each in lines if each.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError):
        return None
    return min(kilobytes * 1024, _limit_of_the_container())


def _limit_of_the_container() -> int:
    try:
        with open("/sys/fs/cgroup/memory.max") as limit, open("/sys/fs/cgroup/memory.current") as used:
            return int(limit.read()) - int(used.read())
    except (OSError, ValueError):  # none, or "max"
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(each) if each.isdigit() else 0 for each in text.split(".")[:2])
