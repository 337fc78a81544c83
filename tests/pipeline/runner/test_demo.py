"""`clarion demo` with Spark: events to a rollup and to a table, counted to the last one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.xdist_group("spark-drivers")
@pytest.mark.timeout(500)
def test_every_log_line_is_in_the_table_exactly_once(tmp_path):
    command = [sys.executable, "-m", "clarion.cli.main", "demo", "--seconds", "3", "--rate", "200"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CLARION_")}
    environment["TMPDIR"] = str(tmp_path)
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=480, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("✓ all there") == 5
    assert "archive (Delta table)" in done.stdout
    orders, lines = done.stdout.splitlines()[-2:]
    assert orders.startswith("every one of ")
    assert " log lines is in the Delta table exactly once; the rollup counted " in lines
    assert "requests   p50" in done.stdout, "a reader prints what the rollup writes"
    assert not [each for each in Path(tmp_path).iterdir() if each.name.startswith("clarion-demo")]
