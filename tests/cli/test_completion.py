"""What the Tab key finds, asked as bash, zsh and fish ask: topics, groups, settings and their values, or nothing."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from clarion.cli.completion import rejoined
from clarion.testing import EmbeddedBroker, embedded

from .conftest import Shell, clean_environment

SHELLS = ("bash", "zsh", "fish")


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with embedded(topics=["orders", "orders-eu", "payments"]) as running:
        running.produce("orders", "x")
        assert Shell(running.bootstrap)("consume", "orders", "--group", "billing").status == 0
        yield running


def words_of(line: str) -> list[str]:
    """As bash takes a line apart: also at every `=` and `:`."""
    apart = line.replace("=", " = ").replace(":", " : ")
    return apart.split() + ([""] if line.endswith(" ") else [])


def tab(shell: str, line: str, **more: str) -> list[str]:
    """What the shell's script would offer behind `line`."""
    words = words_of(line)
    asked = {"COMP_WORDS": "\n".join(words), "COMP_CWORD": str(len(words) - 1)}
    if shell != "bash":
        asked = {"_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    done = subprocess.run(
        [sys.executable, "-m", "clarion"],
        env={**clean_environment(), "_CLARION_COMPLETE": f"complete_{shell}", **asked, **more},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stderr == ""
    if shell != "zsh":
        return [each.partition("\t")[0] for each in done.stdout.splitlines() if each]
    if done.stdout == "_files\n":
        return []
    inside = done.stdout.strip().removeprefix("_arguments '*: :((").removesuffix("))'")
    return [each.split('"')[1].replace("\\\\:", ":") for each in inside.splitlines()]


@pytest.mark.parametrize("shell", SHELLS)
def test_topics_and_groups_are_those_of_the_broker(shell: str, broker: EmbeddedBroker) -> None:
    where = {"CLARION_BOOTSTRAP": broker.bootstrap}
    assert tab(shell, "clarion topic describe or", **where) == ["orders", "orders-eu"]
    assert tab(shell, "clarion consume ", **where) == ["orders", "orders-eu", "payments"]
    assert tab(shell, "clarion group describe b", **where) == ["billing"]
    assert tab(shell, f"clarion --bootstrap {broker.bootstrap} produce pay") == ["payments"]
    assert tab(shell, f"clarion topic delete orders -b {broker.bootstrap} pay") == ["payments"]


@pytest.mark.parametrize("shell", SHELLS)
def test_settings_and_their_values_are_known_without_a_broker(shell: str) -> None:
    assert "retention.ms=" in tab(shell, "clarion topic alter orders --config ret")
    names = tab(shell, "clarion topic alter orders --config cleanup.pol")
    assert names == ["cleanup.policy=compact", "cleanup.policy=delete"]
    values = tab(shell, "clarion topic alter orders --config cleanup.policy=com")
    assert values == (["compact"] if shell == "bash" else ["cleanup.policy=compact"]), "bash keeps what is before the ="
    assert tab(shell, "clarion topic alter orders --unset cleanup") == ["cleanup.policy"]
    assert tab(shell, "clarion serve --durability p") == ["page-cache"]
    assert tab(shell, "clarion log-level net=w") == (["warning"] if shell == "bash" else ["net=warning"])


@pytest.mark.parametrize("shell", SHELLS)
def test_commands_and_options_are_offered_as_ever(shell: str) -> None:
    assert tab(shell, "clarion top") == ["top", "topic"]
    assert "--partitions" in tab(shell, "clarion topic create --part")


def test_without_a_broker_nothing_is_offered_and_nothing_is_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        nobody = f"127.0.0.1:{taken.getsockname()[1]}"
    for shell in SHELLS:
        assert tab(shell, "clarion topic describe o", CLARION_BOOTSTRAP=nobody) == []
    assert tab("bash", "clarion topic describe o", CLARION_BOOTSTRAP="nonsense") == []


def test_a_broker_that_says_nothing_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes the connection and never answers; the whole answer is bounded by far less than any other wait."""
    from clarion.cli.names_at_broker import Asker

    with socket.create_server(("127.0.0.1", 0)) as silent:
        asker = Asker({}, seconds=0.2)
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            asker.metadata(*silent.getsockname())
        with pytest.raises(TimeoutError):
            asker.groups(*silent.getsockname())
        assert time.monotonic() - began < 20, "the second question has no time of its own"
        monkeypatch.setenv("CLARION_BOOTSTRAP", f"127.0.0.1:{silent.getsockname()[1]}")
        assert tab("bash", "clarion topic describe o", **os.environ) == []


def test_an_answer_that_is_none_is_as_good_as_none() -> None:
    import threading

    def answer(server: socket.socket, said: bytes) -> None:
        client, _ = server.accept()
        with client:
            client.recv(1000)
            client.sendall(said)

    for said in (b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\0\0\0\x08\0\0\0\x01\x7f\xff\xff\xff"):
        with socket.create_server(("127.0.0.1", 0)) as server:
            thread = threading.Thread(target=answer, args=(server, said))
            thread.start()
            where = f"127.0.0.1:{server.getsockname()[1]}"
            assert tab("bash", "clarion topic describe o", CLARION_BOOTSTRAP=where) == []
            thread.join()


def test_profiles_are_known_by_name(tmp_path) -> None:
    config = {"XDG_CONFIG_HOME": str(tmp_path)}
    (tmp_path / "clarion").mkdir()
    (tmp_path / "clarion" / "profiles.toml").write_text('[profiles.production]\nbootstrap = "10.0.0.1:9092"\n')
    assert tab("bash", "clarion --profile pro", **config) == ["production"]
    assert tab("fish", "clarion profile use ", **config) == ["production"]


@pytest.mark.parametrize(
    ("words", "last", "expected"),
    [
        (["topic", "list"], "", ["topic", "list", ""]),
        (["--config", "a", "="], "b", ["--config", "a=b"]),
        (["--config", "a"], "=", ["--config", "a="]),
        (["-b", "host", ":", "9092", "topic"], "l", ["-b", "host:9092", "topic", "l"]),
        (["--config", "=", "a", "="], "", ["--config=a="]),
    ],
)
def test_words_that_bash_took_apart_are_put_together(words: list[str], last: str, expected: list[str]) -> None:
    assert rejoined(words, last) == expected


def test_completion_loads_neither_rich_nor_pydantic_nor_the_client_library() -> None:
    """They take longer to load than the answer may take."""
    script = (
        "import sys\nfrom clarion.cli.main import main\n"
        "try: main([])\nfinally: print(sorted(sys.modules), file=sys.stderr)"
    )
    for shell in SHELLS:
        asked = {
            "COMP_WORDS": "clarion\ntopic\ndescribe\no",
            "COMP_CWORD": "3",
            "_CLARION_COMPLETE": f"complete_{shell}",
        }
        asked["_TYPER_COMPLETE_ARGS"] = "clarion topic describe o"
        environment = {**clean_environment(), **asked}
        done = subprocess.run(
            [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False
        )
        loaded = set(eval(done.stderr.splitlines()[-1]))  # noqa: S307 (our own output)
        slow = {"rich", "confluent_kafka", "pydantic", "asyncio", "pyspark", "clarion.broker.broker"}
        assert loaded & slow == set()
