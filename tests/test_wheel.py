"""Wheels and the source distribution as users get them: built, installed into a fresh environment, and used."""

import shutil
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest
from tools.release import build_sdist, build_wheel, commands, quick_start, run

from clarion.compiled import SUFFIX


def install(wheel: Path, folder: Path) -> Path:
    """Its dependencies are those of this environment. (`make release` installs them anew, too.)"""
    venv.create(folder, with_pip=True)
    run(folder / "bin/python", "-m", "pip", "install", "--quiet", "--no-deps", wheel)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "bin/clarion"


def test_a_wheel_of_plain_python_is_for_every_machine_and_the_quick_start_works_with_it(tmp_path: Path):
    wheel = build_wheel(tmp_path, compiled=False)
    assert wheel.name.endswith("-py3-none-any.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert [name for name in names if name.endswith(".so")] == []
    assert "clarion/py.typed" in names
    migrations = Path("src/clarion/catalog/migrations").rglob("*.py")
    assert {str(path.relative_to("src")) for path in migrations} <= set(names), "Alembic reads them as files"
    clarion = install(wheel, tmp_path / "venv")
    assert run(clarion, "--version", cwd=tmp_path).strip().endswith("(not compiled)")
    assert len(commands()) >= 4
    quick_start(clarion, tmp_path)


def test_the_source_distribution_has_all_that_a_wheel_is_built_from(tmp_path: Path):
    with tarfile.open(build_sdist(tmp_path)) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"setup.py", "pyproject.toml", "README.md", "LICENSE", "src/clarion/py.typed"} <= names
    assert not [name for name in names if "__pycache__" in name or name.endswith(".so")]


@pytest.mark.campaign  # minutes
@pytest.mark.timeout(900)  # it is compiled from scratch
@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_an_installed_wheel_runs_compiled_code(tmp_path: Path):
    wheel = build_wheel(tmp_path, compiled=True)
    names = zipfile.ZipFile(wheel).namelist()
    assert f"clarion/log/log{SUFFIX}" in names
    assert "clarion/log/log.py" in names, "a traceback shows the source"
    clarion = install(wheel, tmp_path / "venv")
    assert run(clarion, "--version", cwd=tmp_path).strip().endswith("(compiled)")
    quick_start(clarion, tmp_path)
