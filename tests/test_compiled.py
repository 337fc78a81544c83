"""Which code runs: a small checkout is compiled for real, edited, and asked what it runs."""

import ast
import importlib.util
import os
import shutil
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

from clarion import compiled
from clarion.log import times
from tests.patches import PatchIgnoredError, refuse

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src/clarion"
WHAT_RUNS = """
from clarion import compiled
compiled.choose(is_command=True)
from clarion.log import log
print(compiled.in_words(), "," , "log.py" if log.__file__.endswith(".py") else "log.so", ",", log.answer())
"""


class Checkout:
    """This repository in small: the real loader and tools, and a hot path of two modules."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for name in ("setup.py", "pyproject.toml", "tools/__init__.py", "tools/compile.py", "README.md"):
            self.write(name, (ROOT / name).read_text())
        for name in ("__init__.py", "compiled.py"):
            self.write(f"src/clarion/{name}", (ROOT / "src/clarion" / name).read_text())
        self.write("src/clarion/py.typed", "")
        self.write("src/clarion/model/__init__.py", "")
        self.write("src/clarion/model/numbers.py", "from typing import Final\n\nBASE: Final = 40\n")
        self.write("src/clarion/log/__init__.py", "")
        self.write(
            "src/clarion/log/log.py", "from clarion.log.add import add\n\ndef answer() -> int:\n    return add(1)\n"
        )
        self.write(
            "src/clarion/log/add.py",
            "from clarion.model.numbers import BASE\n\ndef add(number: int) -> int:\n    return BASE + number\n",
        )

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def edit(self, name: str, old: str, new: str) -> None:
        text = (self.root / name).read_text()
        assert old in text
        self.write(name, text.replace(old, new))

    def compile(self, **environment: str) -> str:
        done = self._python("-m", "tools.compile", **environment)
        assert done.returncode == 0, done.stderr
        return done.stderr

    def what_runs(self, **environment: str) -> str:
        done = self._python("-c", WHAT_RUNS, **environment)
        return (done.stdout or done.stderr.splitlines()[-1]).replace(" ,", ",").strip()

    def _python(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        outside = {name: value for name, value in os.environ.items() if not name.startswith(("CLARION_", "MYPYC_"))}
        env = {**outside, "PYTHONPATH": "src", "PYTHONDONTWRITEBYTECODE": "1", **environment}
        return subprocess.run([sys.executable, *words], cwd=self.root, env=env, capture_output=True, text=True)


# What compiled modules import and is none itself, with the reason. A new module that a small request passes through
# belongs on the list of setup.py, or it is the one that is slow.
PLAIN = {
    "model/errors.py": "an enum and an exception: nothing is called",
    "model/ids.py": "named tuples",
    "model/setting_kinds.py": "read at a start",
    "model/topic_settings.py": "read when settings change",
    "world/disk.py": "its calls are system calls",
    "world/events.py": "a line now and then",
    "world/lock.py": "taken at a start",
    "world/tasks.py": "started at a start",
    "wire/apis.py": "tables",
    "wire/bridge.py": "the way of all that is neither Produce nor Fetch",
    "wire/checksum.py": "a name for a function of C",
    "wire/compression.py": "calls C for what takes its time",
    "wire/left_out.py": "a named tuple",
    "net/tls.py": "once for each connection",
    "broker/authorizer.py": "asked when a partition is looked up, not for every request",
    "broker/broker.py": "what handlers see: attributes",
    "broker/messages.py": "one comparison",
    "broker/threads.py": "a thread takes longer than its call",
    "cluster/elections.py": "rules that are only handed on",
    "groups/outcome.py": "the groups' side",
}


def setup_file() -> types.ModuleType:
    spec = importlib.util.spec_from_file_location("setup_of_clarion", ROOT / "setup.py")
    assert spec is not None
    assert spec.loader is not None
    setup = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(setup)
    return setup


def hot_modules() -> set[str]:
    setup = setup_file()
    for pattern in setup.COMPILED:
        assert [*PACKAGE.glob(pattern)], f"{pattern} of setup.py is no module"
    return {
        str(path.relative_to(PACKAGE))
        for pattern in setup.COMPILED
        for path in PACKAGE.glob(pattern)
        if path.name != "__init__.py"
    }


def test_the_hot_path_compiles_where_none_of_the_libraries_are_that_the_rest_imports() -> None:
    """That is where pip builds a wheel from the source distribution; mypyc refuses what mypy complains about."""
    words = [sys.executable, "-m", "mypy", "--no-site-packages", "--cache-dir", ".mypy_cache/alone"]
    files = sorted(f"src/clarion/{name}" for name in hot_modules())
    done = subprocess.run([*words, *setup_file().MYPY_FLAGS, *files], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


def imported_by(name: str) -> Iterator[str]:
    """Modules of ours, when it is loaded: what only mypy imports is left out."""
    for node in ast.parse((PACKAGE / name).read_text()).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("clarion."):
            whole = node.module.removeprefix("clarion.").replace(".", "/")
            yield from {f"{whole}/{one.name}.py" for one in node.names} | {f"{whole}.py"}


def test_what_a_small_request_passes_through_is_on_the_list() -> None:
    hot = hot_modules()
    beside = {
        found: name
        for name in sorted(hot)
        for found in imported_by(name)
        if (PACKAGE / found).exists() and found not in hot
    }
    assert {found: name for found, name in beside.items() if found not in PLAIN} == {}
    assert sorted(PLAIN.keys() - beside.keys()) == [], "nobody imports these any more"


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_compiled_code_runs_only_while_every_source_is_as_it_was(tmp_path: Path):
    checkout = Checkout(tmp_path / "checkout")
    assert checkout.what_runs() == "not compiled, log.py, 41"
    assert "make compile" in checkout.what_runs(CLARION_COMPILED="1")

    checkout.compile(MYPYC_OPT_LEVEL="0")
    assert checkout.what_runs() == checkout.what_runs(CLARION_COMPILED="1") == "compiled, log.so, 41"
    assert checkout.what_runs(CLARION_COMPILED="0") == "not compiled, log.py, 41"
    assert not [*(checkout.root / "src").rglob("*.so")], "compiled modules lie beside their sources"

    os.utime(checkout.root / "src/clarion/log/log.py")
    assert checkout.what_runs() == "compiled, log.so, 41"

    checkout.edit("src/clarion/log/add.py", "BASE + number", "BASE + number + 1")
    assert checkout.what_runs() == "not compiled, log.py, 42"
    checkout.edit("src/clarion/log/add.py", "BASE + number + 1", "BASE + number")
    assert checkout.what_runs() == "compiled, log.so, 41"

    # The constant of a module that is not compiled itself has been copied into one that is.
    checkout.edit("src/clarion/model/numbers.py", "40", "50")
    assert checkout.what_runs() == "not compiled, log.py, 51"


def test_without_a_compiler_one_line_says_so_and_python_runs(tmp_path: Path):
    checkout = Checkout(tmp_path / "checkout")
    said = [line for line in checkout.compile(CC="there-is-none").splitlines() if line.startswith("clarion: ")]
    assert said == [
        "clarion: not compiled, it runs as plain Python: "
        "the C compiler there-is-none is missing or cannot compile (apt-get install gcc libc6-dev)"
    ]
    assert checkout.what_runs() == "not compiled, log.py, 41"


def test_it_is_all_modules_or_none(tmp_path: Path):
    """Compiled modules take one another for compiled: one that was imported before as Python must not be among them."""
    finder = compiled.Finder(str(tmp_path), {"clarion.log.nowhere": "nowhere.so", "clarion.compiled": "compiled.so"})
    assert finder.comes_too_late()
    assert not compiled.Finder(str(tmp_path), {"clarion.log.nowhere": "nowhere.so"}).comes_too_late()


def test_a_patch_that_compiled_code_would_not_notice_is_refused(monkeypatch: pytest.MonkeyPatch):
    hot, beside = types.ModuleType("clarion.log.hot"), types.ModuleType("clarion.model.beside")
    hot.__file__, beside.__file__ = "hot" + compiled.SUFFIX, "beside.py"
    beside.__annotations__ = {"LIMIT": "Final", "OTHER": "Final", "number": "int"}
    beside.LIMIT, beside.OTHER, beside.number = 1, 3, 2  # type: ignore[attr-defined]
    hot.LIMIT, hot.number = 1, 2  # type: ignore[attr-defined]  # it has imported them
    hot.OTHER = 4  # type: ignore[attr-defined]  # one of its own that is called the same
    monkeypatch.setitem(sys.modules, "clarion.log.hot", hot)
    refuse(type("Elsewhere", (), {"__module__": "os"}), "anything")
    refuse(beside, "number")
    refuse(beside, "OTHER")
    with pytest.raises(PatchIgnoredError, match="has a copy"):
        refuse(beside, "LIMIT")
    with pytest.raises(PatchIgnoredError, match="is compiled"):
        refuse(hot, "anything")
    with pytest.raises(PatchIgnoredError, match="is compiled"):
        refuse(type("Hot", (), {"__module__": "clarion.log.hot"}), "anything")


@pytest.mark.skipif(not compiled.in_use(), reason="nothing is compiled here")
def test_patches_of_compiled_modules_and_classes_fail(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(PatchIgnoredError):
        monkeypatch.setattr(times, "RECORDS_SEARCHED_MAX", 5)
    with pytest.raises(PatchIgnoredError):
        monkeypatch.setattr("clarion.log.times.RECORDS_SEARCHED_MAX", 5)
    with pytest.raises(PatchIgnoredError):
        monkeypatch.setattr(times.TimeSearch, "latest", None)
    with pytest.raises(PatchIgnoredError):
        monkeypatch.delattr(times, "RECORDS_SEARCHED_MAX")


def views_in_tuples(text: str) -> Iterator[str]:
    """Fields of the type memoryview: compiled, a class with one cannot be loaded unless it is a plain one."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ClassDef) and (node.bases or node.decorator_list):
            for field in node.body:
                if isinstance(field, ast.AnnAssign) and ast.unparse(field.annotation) == "memoryview":
                    yield f"{node.name}.{ast.unparse(field.target)}"


def test_no_field_of_a_compiled_tuple_is_a_memoryview() -> None:
    assert [*views_in_tuples("class A(NamedTuple):\n    a: int\n    b: memoryview\n    c: memoryview | None")] == [
        "A.b"
    ]
    found = {name: [*views_in_tuples((PACKAGE / name).read_text())] for name in hot_modules()}
    assert not {name: fields for name, fields in found.items() if fields}


def unfinished(text: str) -> Iterator[str]:
    """Generators that leave something to be done when they are dropped half way: compiled, they do not do it."""
    for function in ast.walk(ast.parse(text)):
        if not isinstance(function, ast.FunctionDef) or "contextmanager" in map(ast.unparse, function.decorator_list):
            continue
        for block in ast.walk(function):
            is_left = isinstance(block, ast.With) or (isinstance(block, ast.Try) and block.finalbody)
            if is_left and any(isinstance(node, ast.Yield | ast.YieldFrom) for node in ast.walk(block)):
                yield f"{function.name}: {ast.unparse(block).splitlines()[0]}"


def test_no_compiled_generator_relies_on_what_is_done_when_it_is_dropped() -> None:
    assert [*unfinished("def a():\n    try:\n        yield 1\n    finally:\n        b()")] == ["a: try:"]
    assert [*unfinished("def a():\n    with b():\n        yield 1")] == ["a: with b():"]
    found = {one for name in hot_modules() for one in unfinished((PACKAGE / name).read_text())}
    closes_itself = ("with closing(disk.open(segment.path)) as file:", "with closing(disk.open(path)) as file:")
    found_by_the_collector = {"_whole_batches: try:"}  # copies of segments, with an open file each
    assert {one for one in found if not one.endswith(closes_itself)} == found_by_the_collector
