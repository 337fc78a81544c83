"""Whether somebody else uses the machine, and what processes have used of it."""

import os
import subprocess
import sys

import pytest
from bench.machine import busy_share, share_between
from bench.peers.process import cpu_seconds_of


def test_waiting_for_a_disk_is_idle_and_stolen_time_is_busy():
    # user, nice, system, idle, iowait, irq, softirq, steal
    before = [0] * 8
    assert share_between(before, [0, 0, 0, 60, 40, 0, 0, 0]) == 0
    assert share_between(before, [10, 0, 10, 50, 20, 0, 0, 10]) == pytest.approx(0.3)


def test_no_time_passed_is_no_work_done():
    assert share_between([1] * 8, [1] * 8) == 0


def test_this_machine_can_be_asked():
    assert 0 <= busy_share(0.02) <= 1


def test_what_children_have_used_counts_after_they_have_ended():
    """As Spark's Python workers do, in the middle of a row."""
    before = cpu_seconds_of(os.getpid())
    busy = "import time\nwhile time.process_time() < 0.3: pass"
    subprocess.run([sys.executable, "-c", busy], check=True)
    assert cpu_seconds_of(os.getpid()) - before >= 0.28
