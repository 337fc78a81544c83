"""Compiles the hot path into a tree of its own, which `clarion` then uses: `make compile`.

`setup.py` says what is compiled and how, `clarion.compiled` when a tree is used. A tree's name is a hash of all that
went into it: the sources (also those that are not compiled, since compiled code relies on their constants and types),
the versions of Python and of mypyc. What is there already is not made again. It takes a minute of processor time.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

from clarion.compiled import ABI, MANIFEST, PACKAGE, SUFFIX, TREES, manifest_line

ROOT = Path(__file__).resolve().parent.parent
NOT_READ = {"__init__.py", "compiled.py", "cli", "pipeline"}  # nothing that is compiled imports these
KEPT = 3  # trees: for those who go back and forth between branches; one is 5 MB


def main() -> int:
    trees = Path(TREES)
    sources = [manifest_line(path) for path in _sources()]
    tree = trees / f"{ABI}-{_key(sources)}"
    if not tree.exists():
        trees.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=trees, prefix="making-") as making:
            lib = Path(making, "lib")
            if not _build(Path(making)):
                return 1
            if not lib.exists():
                return 0  # no compiler: setup.py has said so
            if _key([manifest_line(path) for path in _sources()]) != _key(sources):
                print("The sources were edited while they were compiled. Once more: make compile", file=sys.stderr)
                return 1
            (lib / MANIFEST).write_text("\n".join(_modules(lib)))
            if not tree.exists():  # somebody else was quicker
                lib.rename(tree)
    _write_manifest(tree, sources)
    _forget_old(trees)
    return 0


def _sources() -> list[str]:
    """Below the package: all that mypy may have read."""
    paths = (path.relative_to(PACKAGE) for path in Path(PACKAGE).rglob("*.py"))
    return sorted(str(path) for path in paths if path.parts[0] not in NOT_READ)


def _key(sources: list[str]) -> str:
    """Of all that the compiled code depends on; the version of Python stands before it in a tree's name."""
    how = [version("mypy"), os.environ.get("MYPYC_OPT_LEVEL", ""), (ROOT / "setup.py").read_text()]
    contents = [line.split(" ", 3)[3] for line in sources]  # hash and path, not the time
    return hashlib.blake2b("\n".join(how + contents).encode(), digest_size=10).hexdigest()


def _build(making: Path) -> bool:
    folder = making.relative_to(ROOT)
    words = [
        *(sys.executable, "-W", "ignore", "setup.py", "--quiet", "build_ext", "--parallel", str(os.cpu_count())),
        *("--build-lib", str(folder / "lib"), "--build-temp", str(folder / "objects")),
    ]
    done = subprocess.run(words, cwd=ROOT, env={**os.environ, "MYPYC_C_FOLDER": str(folder / "c")}, check=False)
    return done.returncode == 0


def _modules(lib: Path) -> list[str]:
    found = sorted(path.relative_to(lib) for path in lib.rglob("*" + SUFFIX))
    return [f"module {str(path).removesuffix(SUFFIX).replace(os.sep, '.')} {path}" for path in found]


def _write_manifest(tree: Path, sources: list[str]) -> None:
    """Also of a tree that was there: the files' times are new after a checkout, and comparing hashes takes longer."""
    modules = [line for line in (tree / MANIFEST).read_text().splitlines() if line.startswith("module ")]
    new = tree / (MANIFEST + ".new")
    new.write_text("\n".join([*sources, *modules]) + "\n")
    new.replace(tree / MANIFEST)
    os.utime(tree)


def _forget_old(trees: Path) -> None:
    newest_first = sorted(trees.glob(ABI + "-*"), key=lambda tree: tree.stat().st_mtime_ns, reverse=True)
    for tree in newest_first[KEPT:]:
        shutil.rmtree(tree)


if __name__ == "__main__":
    sys.exit(main())
