"""The connector, unchanged, where executors are other processes: a local cluster, and a master with two workers."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from bench.peers.process import ROOT
from deltalake import DeltaTable

from tests.pipeline.cluster.standalone import Standalone
from tests.pipeline.topics import contents, create, fill, numbered

TOUR_SECONDS_MAX = 280  # 30 on a quiet machine
VALUES = numbered(1000)
# Two more JVMs and a minute each; what executors get and import, `connector/test_shipping` shows in every run.
pytestmark = [pytest.mark.campaign, pytest.mark.spark, pytest.mark.timeout(420)]


def test_a_standalone_master_with_two_workers(bootstrap, unique, tmp_path):
    with Standalone(tmp_path) as cluster:
        take_the_tour(cluster.url, bootstrap, unique, tmp_path)


def test_a_local_cluster_of_two_executors(bootstrap, unique, tmp_path):
    take_the_tour("local-cluster[2,1,1024]", bootstrap, unique, tmp_path)


def take_the_tour(master: str, bootstrap: str, topic: str, folder: Path) -> None:
    for name in (topic, f"{topic}-batch", f"{topic}-stream"):
        create(bootstrap, name, 2)
    for partition in (0, 1):
        fill(bootstrap, topic, VALUES[partition::2], partition)
    command = [sys.executable, "-m", "tests.pipeline.cluster.tour", master, bootstrap, topic, str(folder)]
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"}
    environment.pop("PYTHONPATH", None)
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=TOUR_SECONDS_MAX)
    assert done.returncode == 0, done.stderr[-6000:]
    check(json.loads(done.stdout.splitlines()[-1]))
    for copy in ("batch", "stream"):
        assert sorted(contents(bootstrap, f"{topic}-{copy}")) == VALUES
    table = DeltaTable(str(folder / "lake")).to_pyarrow_table(columns=["value"])
    assert sorted(table["value"].to_pylist()) == VALUES


def check(seen: dict) -> None:
    assert seen["rows"] == len(VALUES)
    assert seen["archive"] == "ended"
    assert seen["executors"] == 2
    ((name, file),) = seen["imported"]  # nothing else is there, and this came in the zip
    assert name == "clarion"
    assert ".zip/clarion/" in file
