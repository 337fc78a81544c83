"""What becomes of a command whose output is full, closed, or read by nobody: an exit status, and at most one line."""

from __future__ import annotations

import subprocess
import sys

import pytest

from .conftest import clean_environment


def run(clarion, script: str) -> subprocess.CompletedProcess[str]:
    """A line of shell; `$CLARION` is the program, told which broker."""
    program = f"{sys.executable} -m clarion -b {clarion.bootstrap}"
    words = ["bash", "-c", script.replace("$CLARION", program)]
    return subprocess.run(words, capture_output=True, text=True, env=clean_environment(), timeout=60, check=False)


@pytest.fixture
def filled(clarion, topic):
    lines = b"x" * 99 + b"\n" + b"y\n" * 50_000
    assert clarion("produce", topic, "--partition", "0", stdin=lines).status == 0
    return topic


def test_a_full_disk_behind_our_output_is_one_line(clarion, filled):
    for command in (f"consume {filled}", "topic list", "topic list --json", "--help", "--version"):
        done = run(clarion, f"$CLARION {command} > /dev/full")
        line = "clarion: cannot write to standard output: No space left on device\n"
        assert (done.returncode, done.stderr) == (1, line), command


def test_a_group_reads_again_what_could_not_be_written(clarion, filled):
    group = f"g-{filled}"
    assert run(clarion, f"$CLARION consume {filled} --group {group} > /dev/full").returncode == 1
    again = clarion("consume", filled, "--group", group)
    assert again.out.count("\n") == 50_001


def test_a_closed_output_or_a_full_stderr_changes_nothing_but_what_is_read(clarion, filled):
    assert run(clarion, "$CLARION topic list >&-").returncode == 0
    assert run(clarion, f"$CLARION consume {filled} >&-").returncode == 0
    assert run(clarion, "$CLARION topic describe no-such 2>/dev/full").returncode == 1
    assert run(clarion, "$CLARION topic describe no-such 2>&-").returncode == 1


def test_a_reader_that_has_enough_ends_us_as_it_ends_cat(clarion, filled):
    done = run(clarion, f"$CLARION consume {filled} | head -n 1 | tail -c 3; echo ${{PIPESTATUS[0]}}")
    assert (done.stdout, done.stderr) == ("xx\n141\n", "")


def test_the_module_is_the_program():
    done = subprocess.run([sys.executable, "-m", "clarion", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("clarion ")
