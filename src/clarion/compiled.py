"""Chooses what runs, the hot modules as plain Python or the same modules compiled by mypyc (`make compile`).

The compiled modules lie in a tree of their own, `build/compiled/…` of a checkout, never beside the sources, where one
that is out of date would shadow an edited file. A tree knows the sources that it was made from, and is used only while
every one of them is as it was: whoever edits a file runs what he wrote. As in git's index, a file with the time and
size of then is taken to be the same, and any other is compared by its hash; that is a millisecond of a start.

The command `clarion` uses such a tree if there is one; whatever else imports `clarion` does not, unless it is told to.
`CLARION_COMPILED=0` forbids it, and `CLARION_COMPILED=1` demands it, of the command and of every import alike. A wheel
has its compiled modules beside the sources, as wheels have: nobody edits those, and all of this is passed by.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, ModuleSpec
from typing import Final

VARIABLE: Final = "CLARION_COMPILED"
MANIFEST: Final = "manifest"
PACKAGE: Final = os.path.dirname(os.path.abspath(__file__))
TREES: Final = os.path.join(os.path.dirname(os.path.dirname(PACKAGE)), "build", "compiled")
SUFFIX: Final = EXTENSION_SUFFIXES[0]
ABI: Final = SUFFIX.split(".")[1]  # the version of Python, its build and the machine
_WITNESS: Final = os.path.join(PACKAGE, "log", "log" + SUFFIX)  # there in a compiled wheel


class Finder:
    """Finds the modules of one tree, before the ordinary finders find their sources."""

    def __init__(self, tree: str, modules: dict[str, str]) -> None:
        self.tree = tree
        self._modules = modules

    def comes_too_late(self) -> bool:
        """Compiled modules take one another for compiled: it is all of them or none."""
        return any(name in sys.modules for name in self._modules)

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        file = self._modules.get(name)
        if file is None:
            return None
        place = os.path.join(self.tree, file)
        spec = ModuleSpec(name, ExtensionFileLoader(name, place), origin=place)
        spec.has_location = True
        return spec


def choose(*, is_command: bool) -> None:
    """Use the compiled modules where they are wanted and there. To be called before the first of them is imported."""
    wanted = os.environ.get(VARIABLE, "")
    if wanted == "0" or not (wanted or is_command) or in_use() is not None:
        return
    if not os.path.isdir(PACKAGE):
        return  # shipped in a zip to Spark's workers, which use nothing of what is compiled
    finder = _matching(TREES)
    if finder is not None and not finder.comes_too_late():
        sys.meta_path.insert(0, finder)
    elif wanted:
        raise ImportError(f"{VARIABLE}={wanted}, but nothing is compiled from the sources as they are: make compile")


def in_use() -> str | None:
    """The folder that compiled modules come from, if they do."""
    for finder in sys.meta_path:
        if isinstance(finder, Finder):
            return finder.tree
    return PACKAGE if os.path.exists(_WITNESS) else None


def in_words() -> str:
    return "not compiled" if in_use() is None else "compiled"


def _matching(trees: str) -> Finder | None:
    try:
        newest_first = sorted(os.scandir(trees), key=lambda tree: tree.stat().st_mtime_ns, reverse=True)
    except OSError:
        return None
    for tree in newest_first:  # two of the same sources differ in how they were compiled
        if tree.name.startswith(ABI + "-") and (finder := read_tree(tree.path)) is not None:
            return finder
    return None


def read_tree(tree: str) -> Finder | None:
    """The modules of a tree, if it was made from the sources that are there now."""
    try:
        with open(os.path.join(tree, MANIFEST)) as file:
            lines = file.read().splitlines()
    except OSError:
        return None
    modules: dict[str, str] = {}
    for line in lines:
        kind, _, rest = line.partition(" ")
        if kind == "module":
            name, _, path = rest.partition(" ")
            modules[name] = path
        elif not _is_as_it_was(rest):
            return None
    return Finder(tree, modules)


def _is_as_it_was(source: str) -> bool:
    time_ns, size, digest, path = source.split(" ", 3)
    path = os.path.join(PACKAGE, path)
    try:
        found = os.stat(path)
        if found.st_mtime_ns == int(time_ns) and found.st_size == int(size):
            return True
        return digest_of(path) == digest
    except OSError:
        return False


def manifest_line(path: str) -> str:
    """What `_is_as_it_was` will ask for. The path is the source's below the package."""
    place = os.path.join(PACKAGE, path)
    found = os.stat(place)
    return f"source {found.st_mtime_ns} {found.st_size} {digest_of(place)} {path}"


def digest_of(path: str) -> str:
    from hashlib import blake2b  # only after a checkout that rewrote the files: not worth its import otherwise

    with open(path, "rb") as file:
        return blake2b(file.read(), digest_size=16).hexdigest()
