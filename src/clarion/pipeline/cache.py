"""Where this package keeps what it makes for Spark (a Java shim, a log configuration): the user's cache folder."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path


def cache_folders(environment: Mapping[str, str]) -> Iterator[Path]:
    """Places to try in turn; the last one is new, for this process alone, and goes with it."""
    if cache := environment.get("XDG_CACHE_HOME"):
        yield Path(cache) / "clarion"
    if home := environment.get("HOME"):
        yield Path(home) / ".cache" / "clarion"
    # Nobody else may have put something there before us, so it is not a name that others can guess.
    folder = tempfile.mkdtemp(prefix="clarion-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    yield Path(folder)


def cached_file(name: str, content: str, environment: Mapping[str, str], *, is_program: bool = False) -> Path | None:
    """A file with this content in the first place that can be written; its name must change with its content."""
    for folder in cache_folders(environment):
        path = folder / name
        try:
            if not path.exists():
                _write(path, content, 0o755 if is_program else 0o644)
        except OSError:
            continue
        if not is_program or os.access(path, os.X_OK):  # a folder may be mounted so that nothing in it can be run
            return path
    return None


def _write(path: Path, content: str, mode: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, aside = tempfile.mkstemp(prefix=".making-", dir=path.parent)
    with os.fdopen(handle, "w") as file:
        file.write(content)
        os.fchmod(handle, mode)
    os.replace(aside, path)
