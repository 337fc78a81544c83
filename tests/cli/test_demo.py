"""The demo, as `make demo` runs it, and the bookkeeping its verdict rests on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from clarion.cli.demo.clients import Meter
from clarion.cli.demo.ledger import OrderWatch, SeenCounts, verdict
from clarion.cli.demo.screen import partition_boxes, sparkline

from .conftest import Shell, clean_environment


def test_it_ends_by_itself_and_every_order_arrived(tmp_path):
    """Without a terminal: a line a second, a table, a sentence, and nothing left behind."""
    command = [sys.executable, "-m", "clarion.cli.main", "demo", "--seconds", "3", "--rate", "300", "--no-spark"]
    environment = {**clean_environment(), "TMPDIR": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "warehouse-3 joins" in done.stdout
    assert "replay starts at the very first order" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("every one of ")
    assert done.stdout.count("✓ all there") == 4
    assert list(Path(tmp_path).iterdir()) == []


def test_a_mistake_in_demo_is_one_line():
    shell = Shell(None)
    assert "--seconds 0" in shell("demo", "--seconds", "0").one_line_error()
    assert "--rate 0" in shell("demo", "--rate", "0").one_line_error()
    assert "nothing answers" in shell("demo", "--bootstrap", "127.0.0.1:1").one_line_error()


def test_a_rate_is_of_the_last_two_seconds_and_none_when_nothing_happens_any_longer():
    meter = Meter()
    for tenth in range(50):
        meter.mark(100 * tenth, tenth / 10)
    assert round(meter.rate(5.0)) == 1000
    assert meter.rate(7.5) == 0


def test_the_verdict_needs_every_order_exactly_once_for_a_lone_reader():
    sent, seen = SeenCounts(), SeenCounts()
    sent.see([0, 1, 2])
    seen.see([0, 2])
    assert not verdict("r", sent, seen, 0, may_repeat=False).is_good
    seen.see([1])
    assert verdict("r", sent, seen, 0, may_repeat=False).is_good
    assert not verdict("r", sent, seen, 1, may_repeat=False).is_good
    seen.see([1])
    assert not verdict("r", sent, seen, 0, may_repeat=False).is_good
    assert verdict("group", sent, seen, 0, may_repeat=True).is_good
    seen.see([3])
    assert not verdict("group", sent, seen, 0, may_repeat=True).is_good


@given(st.lists(st.integers(0, 200_000), max_size=60), st.lists(st.integers(0, 200_000), max_size=60))
def test_a_tally_counts_as_sets_do(ours, theirs):
    one, other = SeenCounts(), SeenCounts()
    one.see(ours)
    other.see(theirs)
    assert one.distinct == len({*ours})
    assert one.repeated == len(ours) - len({*ours})
    assert one.missing_from(other) == len({*ours} - {*theirs})


def test_order_within_a_key_is_watched():
    watch = OrderWatch()
    for key, sequence in (("a", 0), ("b", 0), ("a", 1), ("b", 1)):
        watch.see(key, sequence)
    assert watch.breaks == 0
    watch.see("a", 1)
    watch.see("b", 3)
    assert watch.breaks == 2


def test_small_pictures():
    assert sparkline([]) == ""
    assert sparkline([0, 5, 10]) == "▁▅█"
    assert partition_boxes((1, 4)) == "·■··■·"
