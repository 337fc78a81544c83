"""Builds what is published and tries it as its users will: `python -m tools.release`, or `make release`.

The source distribution, a wheel of plain Python and, where there is a C compiler, a compiled one go to dist/. Each is
installed with its dependencies into an environment of its own, and the commands of the quick start are run with it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
DIST: Final = ROOT / "dist"
QUICK_START: Final = ROOT / "docs" / "quickstart.md"
_READY: Final = re.compile(r"listens on (\S+:\d+)")
_SECONDS_MAX: Final = 1_800  # a compiled wheel takes a minute and a half, on a busy machine ten times that


def main() -> None:
    shutil.rmtree(DIST, ignore_errors=True)
    with tempfile.TemporaryDirectory() as folder:
        for build in (build_sdist, _pure, _compiled):
            built = build(Path(folder))
            if built is None:
                continue
            DIST.mkdir(exist_ok=True)
            print(f"trying {built.name} …", flush=True)
            version = try_out(built, Path(folder) / f"try-{built.name}")
            shutil.copy(built, DIST)
            print(f"  {version}: the quick start works", flush=True)
    print("in dist: " + ", ".join(sorted(path.name for path in DIST.iterdir())))


def _pure(folder: Path) -> Path:
    return build_wheel(folder, compiled=False)


def _compiled(folder: Path) -> Path | None:
    if shutil.which(os.environ.get("CC", "cc")) is None:
        print("there is no C compiler: no compiled wheel")
        return None
    return build_wheel(folder, compiled=True)


def build_sdist(folder: Path) -> Path:
    copy = _copy(folder / "sdist-source")
    script = "import sys; from setuptools.build_meta import build_sdist; build_sdist(sys.argv[1])"
    run(sys.executable, "-c", script, folder / "sdist", cwd=copy)
    (built,) = (folder / "sdist").glob("*.tar.gz")
    return built


def build_wheel(folder: Path, *, compiled: bool) -> Path:
    kind = "compiled" if compiled else "pure"
    copy = _copy(folder / f"{kind}-source")
    pip = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation")
    run(*pip, "--wheel-dir", folder / kind, copy, CLARION_COMPILED="1" if compiled else "0")
    (built,) = (folder / kind).glob("*.whl")
    return built


def _copy(target: Path) -> Path:
    """A build leaves things behind."""
    target.mkdir()
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, target)
    ignored = shutil.ignore_patterns("*.egg-info", "__pycache__", "*.so")
    shutil.copytree(ROOT / "src", target / "src", ignore=ignored)
    return target


def try_out(built: Path, folder: Path) -> str:
    """Install it where nothing else is, and do what the quick start says; what `clarion --version` answers."""
    venv.create(folder / "venv", with_pip=True)
    pinned = folder / "pinned.txt"
    pinned.write_text(
        "\n".join(re.findall(r"^([A-Za-z0-9_.-]+==[^\s;]+)", (ROOT / "requirements.lock").read_text(), re.M))
    )
    pip = (folder / "venv/bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    run(*pip, "--constraint", pinned, built)
    clarion = folder / "venv/bin/clarion"
    version = run(clarion, "--version", cwd=folder).strip()
    quick_start(clarion, folder)
    return version


def quick_start(clarion: Path, folder: Path) -> None:
    serve = [str(clarion), "serve", "--listen", "127.0.0.1:0", "--data-dir", str(folder / "data")]
    with subprocess.Popen(serve, stdout=subprocess.PIPE, text=True, cwd=folder, env=_environment()) as broker:
        try:
            assert broker.stdout is not None
            found = _READY.search(broker.stdout.readline())
            if found is None:
                raise SystemExit(f"{clarion} serve did not start")
            told = {"CLARION_BOOTSTRAP": found[1], "PATH": f"{clarion.parent}{os.pathsep}{os.environ['PATH']}"}
            for command in commands():
                run("bash", "-c", command, cwd=folder, **told)
            (code,) = re.findall(r"```python\n(.*?)```", QUICK_START.read_text(), re.DOTALL)
            run(clarion.parent / "python", "-c", code.replace("127.0.0.1:9092", found[1]), cwd=folder)
        finally:
            broker.terminate()


def commands() -> list[str]:
    """What the quick start shows, but for starting a broker."""
    blocks = re.findall(r"```console\n(.*?)```", QUICK_START.read_text(), re.DOTALL)
    shown = [line[2:] for block in blocks for line in block.splitlines() if line.startswith("$ ")]
    return [line for line in shown if not line.startswith("clarion serve")]


def run(*words: str | Path, cwd: Path | None = None, **variables: str) -> str:
    done = subprocess.run(
        [str(word) for word in words],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**_environment(), **variables},
        timeout=_SECONDS_MAX,
        check=False,
    )
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, words))}\n{done.stdout}{done.stderr}")
    return done.stdout


def _environment() -> dict[str, str]:
    """Nothing of the checkout that this runs in."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("CLARION_", "PYTHONPATH"))}


if __name__ == "__main__":
    main()
