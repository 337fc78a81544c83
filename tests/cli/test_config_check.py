"""`clarion config check`: every problem of a file in one line, before a broker is started with it."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from .conftest import Result, Shell

_NOBODY = 65_534


def check(tmp_path: Path, toml: str, *more: str) -> Result:
    file = tmp_path / "clarion.toml"
    file.write_text(toml)
    return Shell(None)("config", "check", str(file), *more)


def test_a_file_with_nothing_wrong_is_said_to_be_so(tmp_path: Path) -> None:
    checked = check(tmp_path, 'num.partitions = 3\n"log.retention.ms" = "7d"\n[[listeners]]\nlisten = "127.0.0.1:0"')
    assert (checked.status, checked.err) == (0, "")
    assert checked.out == f"{tmp_path}/clarion.toml: 3 settings, nothing wrong\n"


def test_every_problem_has_a_line_of_its_own_with_a_suggestion_where_there_is_one(tmp_path: Path) -> None:
    toml = (
        'log.retention.mss = "7d"\nnum.partitions = 0\nnonsense-of-mine = 1\nmax.connections = 7\n'
        '[[listeners]]\nlistn = "127.0.0.1:0"\nlisten = "0.0.0.0:9092"'
    )
    checked = check(tmp_path, toml)
    assert (checked.status, checked.err) == (1, "")
    lines = checked.out.splitlines()
    assert all(line.startswith(f"{tmp_path}/clarion.toml: ") for line in lines)
    said = [line.removeprefix(f"{tmp_path}/clarion.toml: ") for line in lines]
    assert said[0] == "unknown setting listeners.listn (did you mean listen?)"
    assert said[1] == "unknown setting log.retention.mss (did you mean log.retention.ms?)"
    assert said[2].startswith("num.partitions: ")
    assert "at least 1" in said[2]
    assert said[3] == "unknown setting nonsense-of-mine"
    assert said[4].startswith("listening on 0.0.0.0 lets everybody")
    assert len(said) == 5


def test_old_names_are_no_problem_but_told(tmp_path: Path) -> None:
    checked = check(tmp_path, "default_partitions = 3")
    assert checked.status == 0
    assert "default_partitions is called num.partitions now" in checked.out


@pytest.mark.parametrize("content", ["num.partitions = ", "\xff\xfe"])
def test_what_is_no_toml_is_a_problem(tmp_path: Path, content: str) -> None:
    file = tmp_path / "clarion.toml"
    file.write_bytes(content.encode("latin-1"))
    checked = Shell(None)("config", "check", str(file))
    assert checked.status == 1
    (line,) = checked.out.splitlines()
    assert line.startswith(f"{file} is not TOML: ")


def test_a_file_that_is_not_there_is_a_usage_error(tmp_path: Path) -> None:
    assert "there is no such file" in Shell(None)("config", "check", str(tmp_path / "nothing")).one_line_error(2)
    assert "is a folder" in Shell(None)("config", "check", str(tmp_path)).one_line_error(2)


@pytest.mark.parametrize("words", [["config", "check"], ["backup", "copy", "--data-dir"]])
def test_files_of_somebody_else_are_refused_in_one_line(tmp_path: Path, words: list[str]) -> None:
    locked = tmp_path / "locked"
    locked.mkdir(mode=0)
    shell, target = Shell(None), str(locked / "x") if words[0] == "config" else str(locked)
    shell(*words, target)  # whatever it loads is loaded: as somebody else we may not read even that
    me = os.geteuid()
    try:
        if me == 0:
            os.seteuid(_NOBODY)
        refused = shell(*words, target)
    finally:
        os.seteuid(me)
        locked.chmod(0o700)
    assert f"no permission for {locked}" in refused.one_line_error(1)


def test_a_certificate_that_does_not_belong_to_its_key_is_a_problem(tmp_path: Path) -> None:
    for name in ("one", "two"):
        words = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
        names = ["-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.pem"]
        subprocess.run(["openssl", *words, *names], cwd=tmp_path, check=True, capture_output=True)

    def with_key(name: str) -> Result:
        return check(
            tmp_path, f'clarion.tls.certificate = "{tmp_path}/one.pem"\nclarion.tls.key = "{tmp_path}/{name}.key"'
        )

    assert with_key("one").status == 0
    wrong = with_key("two")
    assert wrong.status == 1
    assert f"{tmp_path}/two.key is not the key of {tmp_path}/one.pem" in wrong.out

    words = ["genpkey", "-algorithm", "ed25519", "-aes-128-cbc", "-pass", "pass:secret", "-out", "secret.key"]
    subprocess.run(["openssl", *words], cwd=tmp_path, check=True, capture_output=True)
    assert "is encrypted" in with_key("secret").out  # and nobody was asked for the pass phrase
    (tmp_path / "junk.key").write_text("junk")
    assert f"{tmp_path}/junk.key not a private key" in with_key("junk").out

    (tmp_path / "one.key").chmod(0o644)
    careless = with_key("one")
    assert (careless.status, careless.err) == (0, "")
    assert f"everybody on this machine can read {tmp_path}/one.key" in careless.out


def test_programs_get_json(tmp_path: Path) -> None:
    checked = check(tmp_path, "num.partitions = 0\ndefault_partitions = 3", "--json")
    told = json.loads(checked.out)
    assert checked.status == 1
    assert len(told["problems"]) == 1
    assert told["renamed"] == {"default_partitions": "num.partitions"}
