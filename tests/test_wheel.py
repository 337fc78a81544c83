"""A wheel as users get it: built, installed into a fresh environment, and a broker of it takes and gives messages."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from clarion.compiled import SUFFIX

ROOT = Path(__file__).resolve().parent.parent
pytestmark = [
    pytest.mark.campaign,
    pytest.mark.timeout(900),  # it is compiled from scratch
    pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler"),
]


def run(*words: str | Path, **options: object) -> str:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("CLARION_", "PYTHONPATH"))}
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, env=env, **options)  # type: ignore[call-overload]
    assert done.returncode == 0, done.stdout + done.stderr
    return str(done.stdout)


def build(tmp_path: Path) -> Path:
    """In a copy: a build leaves things behind."""
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in ("setup.py", "pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, copy)
    shutil.copytree(ROOT / "src", copy / "src", ignore=shutil.ignore_patterns("*.egg-info", "__pycache__"))
    pip = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation")
    run(*pip, "--wheel-dir", tmp_path / "wheels", copy)
    (wheel,) = (tmp_path / "wheels").glob("*.whl")
    return wheel


def install(wheel: Path, folder: Path) -> Path:
    """Its dependencies are those of this environment."""
    venv.create(folder, with_pip=True)
    run(folder / "bin/pip", "install", "--quiet", "--no-deps", wheel)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "bin/clarion"


def test_an_installed_wheel_runs_compiled_code(tmp_path: Path):
    wheel = build(tmp_path)
    names = zipfile.ZipFile(wheel).namelist()
    assert f"clarion/log/log{SUFFIX}" in names
    assert "clarion/log/log.py" in names, "a traceback shows the source"
    clarion = install(wheel, tmp_path / "venv")
    assert run(clarion, "--version", cwd=tmp_path).strip().endswith("(compiled)")

    serve = [clarion, "serve", "--listen", "127.0.0.1:0", "--data-dir", tmp_path / "data"]
    with subprocess.Popen(serve, stdout=subprocess.PIPE, text=True, cwd=tmp_path) as broker:
        assert broker.stdout is not None
        address = re.search(r"listens on (\S+:\d+)", broker.stdout.readline())
        assert address is not None
        at = ("--bootstrap", address[1])
        run(clarion, *at, "topic", "create", "orders", cwd=tmp_path)
        run(clarion, *at, "produce", "orders", cwd=tmp_path, input="one\ntwo\nthree\n")
        read = run(clarion, *at, "consume", "orders", "--from", "start", "--max", "3", cwd=tmp_path)
        broker.terminate()
        assert broker.wait(15) == 0
    assert [word for word in ("one", "two", "three") if word in read] == ["one", "two", "three"]
