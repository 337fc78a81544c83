"""A program for `test_shipping`: Spark whose Python workers have pyspark, pyarrow and numpy, and nothing else.

    python bare_workers.py BOOTSTRAP FOLDER

The workers run this Python without its site-packages; a folder with links to those three is all they get. What they
have of Clarion came in the zip. It reads topic `in`, writes to topic `out`, as a batch and as a stream, and prints what
the workers could import.
"""

import importlib.util
import json
import os
import sys
from pathlib import Path

from clarion.pipeline.shipping import build_zip, ship

ALLOWED = ("pyspark", "py4j", "pyarrow", "numpy")
LIBRARIES = ("pyarrow.libs", "numpy.libs")
FORBIDDEN = ("crc32c", "cramjam", "kio", "confluent_kafka", "uvloop", "pandas", "deltalake", "rich")


def bare_python(folder: Path) -> Path:
    """An interpreter that sees the standard library and the allowed packages."""
    site = folder / "site"
    site.mkdir(parents=True)
    for name in ALLOWED:
        home = Path(importlib.util.find_spec(name).submodule_search_locations[0])
        (site / name).symlink_to(home)
        for library in LIBRARIES:
            if (home.parent / library).exists() and not (site / library).exists():
                (site / library).symlink_to(home.parent / library)
    python = folder / "python"
    python.write_text(WRAPPER.format(site=site, python=sys.executable, zip=build_zip(folder / "installed.zip")))
    python.chmod(0o755)
    return python


# One process belongs to the driver, which has the package installed: the one that watches a stream's topics. Spark
# sends it no files.
WRAPPER = """#!/bin/sh
PYTHONPATH="$PYTHONPATH:{site}"
case "$*" in *python_streaming_source_runner*) PYTHONPATH="$PYTHONPATH:{zip}" ;; esac
export PYTHONPATH
exec {python} -S "$@"
"""


def what_can_be_imported(_: object) -> str:
    import importlib

    found = []
    for name in (*FORBIDDEN, "clarion"):
        try:
            found.append([name, importlib.import_module(name).__file__])
        except ImportError:
            pass
    return json.dumps(found)


def main(bootstrap: str, folder: Path) -> None:
    os.environ["PYSPARK_PYTHON"] = str(bare_python(folder))
    os.environ.pop("PYTHONPATH", None)
    from clarion.pipeline import session

    spark = session({"spark.ui.enabled": "false", "spark.driver.memory": "1g"}, master="local[2,1]")
    ship(spark)
    where = {"bootstrap.servers": bootstrap}
    topic = spark.read.format("clarion").options(**where, subscribe="in", includeHeaders="true").load()
    topic.select("key", "value", "headers").write.format("clarion").options(**where, topic="out").mode("append").save()
    stream = spark.readStream.format("clarion").options(**where, subscribe="in", startingOffsets="earliest").load()
    stream = stream.select("key", "value").writeStream.format("clarion").options(**where, topic="out")
    stream.option("checkpointLocation", str(folder / "checkpoint")).trigger(
        availableNow=True
    ).start().awaitTermination()
    print("IMPORTED", spark.sparkContext.parallelize([0], 1).map(what_can_be_imported).first(), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
