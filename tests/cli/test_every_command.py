"""Whatever command: bad input is one line and the right exit status, and its help is plain text that can be pasted."""

from __future__ import annotations

import os
import re
import shlex
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from clarion.cli.app import app
from clarion.cli.main import main
from clarion.cli.reference import leaves
from clarion.testing import embedded

from .conftest import Shell, clean_environment

COMMANDS: dict[str, Any] = {" ".join(path): command for path, command in leaves(typer.main.get_command(app), ())}
GROUPS = sorted({" ".join(name.split()[:-1]) for name in COMMANDS if " " in name} | {""})
BIN = Path(sys.executable).parent

_INVOICES = "clarion subscription create invoices --topic orders"
BEFORE = {
    "restore": ["clarion backup nightly --data-dir clarion-data"],
    **{
        f"subscription {name}": [_INVOICES]
        for name in ("alter", "describe", "peek", "purge", "pause", "resume", "seek", "redrive", "delete")
    },
}
# Pipelines run on Spark (tests/pipeline/runner/test_help_examples), the demo for
# a while (tests/cli/test_demo); brokers, and what is done to those that have stopped, have stories of their own below.
NOT_RUN_HERE = ("pipeline", "demo", "serve", "cluster")


def options_of(name: str) -> list[Any]:
    return [each for each in COMMANDS[name].params if each.param_type_name == "option" and each.name != "help"]


def arguments_of(name: str) -> list[str]:
    """Something for every argument that must be there."""
    something = "x.py" if name == "pipeline run" else "x"  # what is no file's name may be a misspelt pipeline
    return [something for each in COMMANDS[name].params if each.param_type_name == "argument" and each.required]


def examples_of(name: str) -> list[str]:
    paragraphs = (COMMANDS[name].help or "").split("\n\n")
    return [line.strip() for each in paragraphs if each.startswith("    ") for line in each.splitlines()]


def help_of(name: str) -> str:
    shown = Shell(None)(*name.split(), "--help")
    assert shown.status == 0, shown.err
    return shown.out


@pytest.mark.parametrize("name", COMMANDS)
def test_an_option_that_does_not_exist_is_a_usage_error(name):
    complaint = Shell(None)(*name.split(), *arguments_of(name), "--no-such-option").one_line_error(2)
    assert "--no-such-option" in complaint
    assert f"`clarion {name} --help`" in complaint


@pytest.mark.parametrize("name", [each for each in COMMANDS if arguments_of(each)])
def test_a_missing_argument_is_a_usage_error(name):
    assert "Missing argument" in Shell(None)(*name.split()).one_line_error(2)


@pytest.mark.parametrize("name", [each for each in COMMANDS if each != "serve"])
def test_a_number_that_is_none_is_a_usage_error(name):
    for option in options_of(name):
        flag = max(option.opts, key=len)
        if _is_number(option):
            complaint = Shell(None)(*name.split(), *arguments_of(name), flag, "abc").one_line_error(2)
            assert complaint.startswith(f"{flag} abc: write a "), complaint


def _is_number(option: Any) -> bool:
    return option.bare_type() in ("int", "float", "list[int]")


def test_there_are_numbers_among_the_options():
    assert sum(_is_number(option) for name in COMMANDS for option in options_of(name)) > 10


@pytest.mark.parametrize("name", GROUPS)
def test_a_command_that_does_not_exist_is_a_usage_error(name):
    assert "there is no command no-such" in Shell(None)(*name.split(), "no-such").one_line_error(2)
    if name:
        assert "a command is missing: " in Shell(None)(*name.split()).one_line_error(2)


@pytest.mark.parametrize(
    ("words", "suggestion"),
    [
        ("tpoic list", "topic"),
        ("topic lst", "list"),
        ("consume t --partion 1", "--partition"),
        ("group rest g", "reset"),
    ],
)
def test_a_typing_mistake_gets_a_suggestion(words, suggestion):
    assert f"(did you mean {suggestion}?)" in Shell(None)(*words.split()).one_line_error(2)


TALKERS = [name for name in COMMANDS if any(each.name == "bootstrap" for each in options_of(name))]


@pytest.mark.parametrize("name", [each for each in TALKERS if each.split()[0] not in (*NOT_RUN_HERE, "profile")])
def test_nothing_listens_is_one_line_and_a_failure(name):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    more = {
        "topic alter": ["--partitions", "2"],
        "group reset": ["--to-earliest"],
        "subscription create": ["--topic", "x"],
        "subscription alter": ["--retention", "1d"],
        "subscription seek": ["--to", "earliest"],
        "subscription purge": ["--yes"],
        "subscription delete": ["--yes"],
    }.get(name, [])
    complaint = Shell(address)(*name.split(), *arguments_of(name), *more).one_line_error(1)
    assert complaint == f"nothing answers at {address}; is `clarion serve` running?"


@pytest.mark.parametrize("name", [*COMMANDS, *GROUPS])
def test_help_is_plain_text_of_80_columns(name, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    shown = help_of(name)
    examples = examples_of(name) if name in COMMANDS else []
    assert max(map(len, shown.splitlines())) <= 80
    assert not re.search(r"<(str|int|bool|float|list|Path)|│|╭", shown)
    assert " · clarion" not in shown
    for example in examples:
        assert f"\n  {example}\n" in shown
    for option in options_of(name) if name in COMMANDS else []:
        assert option.opts[0] in shown
        assert option.help, f"{name}: {option.opts[0]} has no explanation"


@pytest.mark.parametrize("name", [name for name in COMMANDS if name.split()[0] not in NOT_RUN_HERE])
def test_every_example_works_when_it_is_pasted(name, tmp_path):
    examples = examples_of(name)
    assert examples, f"clarion {name} --help shows no example"
    topics = [] if name in ("topic create", "produce") else ["orders", "greetings"]
    over_http = {"metrics_port": 0} if name.startswith("subscription") else {}
    with embedded(topics=topics, data_dir=tmp_path / "clarion-data", **over_http) as broker:
        if topics:
            _prepare(broker)
        environment = {
            **clean_environment(),
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            "CLARION_BOOTSTRAP": broker.bootstrap,
            "XDG_CONFIG_HOME": str(tmp_path / "config"),
        }
        for example in [*BEFORE.get(name, ()), *examples]:
            done = subprocess.run(
                ["bash", "-c", example], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60
            )
            assert done.returncode == 0, f"{example}\n{done.stdout}{done.stderr}"


def _prepare(broker: Any) -> None:
    """What examples are about: a few orders, and a group that has read them."""
    for number in range(3):
        broker.produce_json("orders", {"order": number}, key=f"table {number}")
    assert Shell(broker.bootstrap)("consume", "orders", "--group", "billing").status == 0


@pytest.mark.parametrize("example", examples_of("serve"))
def test_every_example_of_serve_starts_brokers_that_stop_cleanly(example, tmp_path):
    environment = {
        **clean_environment(),
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        "CLARION_LISTENERS": "127.0.0.1:0",  # whatever else runs on this machine
    }
    process = subprocess.Popen(
        ["bash", "-c", f"exec {example}"], cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    with process.stdout as output:
        line = output.readline()
        process.terminate()
        assert process.wait(60) == 0
    assert re.search(r"listens? on 127\.0\.0\.1:\d+", line)


def test_the_example_of_cluster_adopt_works_when_it_is_pasted(tmp_path):
    with embedded(topics=["orders"], data_dir=tmp_path / "clarion-data") as broker:
        broker.produce("orders", "x")
    environment = {**clean_environment(), "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
    (example,) = examples_of("cluster adopt")
    done = subprocess.run(
        ["bash", "-c", example], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", [name for name in COMMANDS if name.split()[0] in NOT_RUN_HERE])
def test_the_options_of_every_other_example_exist(name):
    from clarion.pipeline.ready import REGISTRY

    for example in examples_of(name):
        words = shlex.split(example)
        assert words[: len(name.split()) + 1] == ["clarion", *name.split()]
        known = {flag for each in options_of(name) for flag in (*each.opts, *each.secondary_opts)}
        for word in words:
            known |= {f"--{option.name}" for option in REGISTRY[word].options} if word in REGISTRY else set()
        assert {word.partition("=")[0] for word in words if word.startswith("--")} <= known


def test_a_command_line_loads_nothing_it_does_not_need():
    """Help, versions and mistakes come at once: what talks to brokers, draws tables or runs Spark stays on the disk."""
    script = (
        "import sys\n"
        "from clarion.cli.main import main\n"
        "try: main(sys.argv[1:])\n"
        "finally: print(sorted(sys.modules), file=sys.stderr)\n"
    )
    heavy = {
        "rich",
        "confluent_kafka",
        "pyspark",
        "pandas",
        "pyarrow",
        "uvloop",
        "asyncio",
        "ssl",
        "clarion.broker.broker",
    }
    for words in (["--help"], ["topic", "create", "--help"], ["--version"], ["produce"]):
        done = subprocess.run(
            [sys.executable, "-c", script, *words], capture_output=True, text=True, env=clean_environment(), check=False
        )
        loaded = set(eval(done.stderr.splitlines()[-1]))  # noqa: S307 (our own output)
        assert loaded & heavy == set(), words


def test_main_is_what_the_script_calls():
    with pytest.raises(SystemExit) as end:
        main(["--version"])
    assert end.value.code == 0
