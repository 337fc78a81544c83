"""Connection profiles: which address and which settings a command uses, and the file they are kept in."""

from __future__ import annotations

import json
import stat
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clarion.cli.profiles import Profile, Profiles, _parsed, _toml, profiles_file

from .conftest import Shell


@pytest.fixture(autouse=True)
def config_home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / "config"


@pytest.fixture
def nobody() -> Shell:
    """A shell without --bootstrap."""
    return Shell(None)


def test_the_first_profile_is_used_at_once(nobody, broker):
    assert nobody("profile", "list").out.startswith("no profiles yet")
    assert nobody("profile", "add", "here", "-b", broker.address).out == "added here, in use now\n"
    assert nobody("topic", "list").status == 0
    assert nobody("profile", "add", "there", "-b", "127.0.0.1:1").out.startswith("added there; use it with")
    assert nobody("topic", "list").status == 0
    assert nobody("profile", "use", "there").out == "using there\n"
    assert "127.0.0.1:1" in nobody("topic", "list").one_line_error(1)
    listed = json.loads(nobody("profile", "list", "--json").out)
    assert [(each["profile"], each["current"]) for each in listed] == [("here", False), ("there", True)]
    assert nobody("profile", "remove", "there").out == "removed there\n"
    assert [each["current"] for each in json.loads(nobody("profile", "list", "--json").out)] == [False]


def test_what_stands_closer_to_the_keyboard_wins(nobody, broker, monkeypatch):
    for name, address in (("good", broker.address), ("bad", "127.0.0.1:1")):
        nobody("profile", "add", name, "--bootstrap", address)
    nobody("profile", "use", "bad")
    assert nobody("--profile", "good", "topic", "list").status == 0
    monkeypatch.setenv("CLARION_PROFILE", "good")
    assert nobody("topic", "list").status == 0
    assert nobody("--profile", "bad", "topic", "list").status == 1
    monkeypatch.setenv("CLARION_BOOTSTRAP", "127.0.0.1:1")
    assert nobody("topic", "list").status == 1
    assert nobody("--profile", "good", "topic", "list").status == 0
    assert nobody("--profile", "good", "--bootstrap", "127.0.0.1:1", "topic", "list").status == 1
    assert nobody("--bootstrap", broker.address, "topic", "list").status == 0


def test_a_profile_brings_its_settings_and_x_comes_on_top(nobody, broker):
    nobody("-X", "security.protocol=ssl", "profile", "add", "p", "-b", broker.address)
    assert "does not speak TLS" in nobody("topic", "list").one_line_error(1)
    assert nobody("-X", "security.protocol=plaintext", "topic", "list").status == 0
    assert nobody("--bootstrap", broker.address, "topic", "list").status == 0  # no profile: no settings of one


def test_tls_files_are_named_by_their_whole_path(nobody, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("ca.pem", "me.pem", "me.key"):
        (tmp_path / name).write_text("")
    files = ["--tls-ca", "ca.pem", "--tls-certificate", "me.pem", "--tls-key", "me.key"]
    nobody("-X", "ssl.key.password=secret", "profile", "add", "p", "-b", "h:1", *files)
    shown = nobody("profile", "list")
    assert "ssl.key.password=***" in shown.out
    assert "secret" not in shown.out
    stored = tomllib.loads(profiles_file().read_text())["profiles"]["p"]
    assert stored == {
        "bootstrap": "h:1",
        "security.protocol": "ssl",
        "ssl.ca.location": f"{tmp_path}/ca.pem",
        "ssl.certificate.location": f"{tmp_path}/me.pem",
        "ssl.key.location": f"{tmp_path}/me.key",
        "ssl.key.password": "secret",
    }


def test_nobody_else_can_read_the_file(nobody):
    nobody("profile", "add", "p", "-b", "h:1")
    assert stat.S_IMODE(profiles_file().stat().st_mode) == 0o600
    assert [each.name for each in profiles_file().parent.iterdir()] == ["profiles.toml"]


@pytest.mark.parametrize(
    ("words", "status", "complaint"),
    [
        (["profile", "add", "p"], 2, "--bootstrap HOST:PORT"),
        (["profile", "add", "p", "-b", "nowhere"], 2, "write HOST:PORT"),
        (["profile", "add", "../p", "-b", "h:1"], 2, "is not a name for a profile"),
        (["profile", "add", "p", "-b", "h:1", "--tls-ca", "/no/ca.pem"], 1, "there is no such file"),
        (["profile", "add", "p", "-b", "h:1", "--tls-key", "/etc/passwd"], 2, "give both"),
        (["profile", "add", "known", "-b", "h:1"], 1, "--force"),
        (["profile", "use", "knwon"], 1, "(did you mean known?)"),
        (["profile", "remove", "p"], 1, "there is no profile p"),
        (["--profile", "p", "topic", "list"], 1, "clarion profile list"),
        (["topic", "list", "--profile", "known"], 2, "--profile comes before the command"),
    ],
)
def test_a_mistake_is_one_line(nobody, words, status, complaint):
    nobody("profile", "add", "known", "-b", "h:1")
    assert complaint in nobody(*words).one_line_error(status)


@pytest.mark.parametrize(
    "text", ["[", "profiles = 3", "[profiles.p]\n", '[profiles.p]\nbootstrap = "h:1"\n"client.id" = 3\n', "\udcff"]
)
def test_a_file_that_makes_no_sense_is_named(nobody, text):
    profiles_file().parent.mkdir(parents=True)
    profiles_file().write_bytes(text.encode("utf-8", "surrogateescape"))
    assert str(profiles_file()) in nobody("profile", "list").one_line_error(1)
    assert nobody("--bootstrap", "127.0.0.1:1", "topic", "list").one_line_error(1).startswith("nothing answers")


TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\x7f"), min_size=1, max_size=20)


@given(st.dictionaries(TEXTS, st.tuples(TEXTS, st.dictionaries(TEXTS.filter(lambda t: t != "bootstrap"), TEXTS))))
def test_whatever_is_written_is_read_again(content):
    made = Profiles({name: Profile(*each) for name, each in content.items()}, next(iter(content), None))
    assert _parsed(_toml(made), profiles_file()) == made
