"""The package on its way to executors that have nothing but pyspark, pyarrow and numpy."""

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from confluent_kafka import Producer

from clarion.pipeline.shipping import build_zip
from tests.pipeline.connector import bare_workers
from tests.pipeline.topics import contents, create, numbered


def test_the_same_sources_make_the_same_zip(tmp_path):
    first, second = build_zip(tmp_path / "one.zip"), build_zip(tmp_path / "two.zip")
    assert first.read_bytes() == second.read_bytes()
    assert build_zip() == build_zip()
    names = zipfile.ZipFile(first).namelist()
    assert {"clarion/__init__.py", "clarion/pipeline/kafka/decode.py", "pyspark_clarion/__init__.py"} <= set(names)
    assert all(name.endswith(".py") for name in names)


@pytest.mark.timeout(240)
@pytest.mark.spark
def test_workers_with_nothing_else_read_and_write(bootstrap, tmp_path):
    create(bootstrap, "in", 2)
    create(bootstrap, "out")
    producer = Producer({"bootstrap.servers": bootstrap, "compression.type": "zstd"})
    for nth, value in enumerate(numbered(500)):
        producer.produce("in", value, key=b"%d" % nth, headers=[("n", b"%d" % nth)])
    producer.flush(30)
    program = [sys.executable, bare_workers.__file__, bootstrap, str(tmp_path)]
    done = subprocess.run(program, capture_output=True, text=True, timeout=200, cwd=Path(__file__).parents[3])
    assert done.returncode == 0, done.stderr[-6000:]
    assert sorted(contents(bootstrap, "out")) == sorted(numbered(500) * 2)
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("IMPORTED "))
    ((name, file),) = json.loads(line.removeprefix("IMPORTED "))
    assert name == "clarion"
    assert ".zip/clarion/" in file
