"""Pipelines out of files: what is found, and what a broken file is told."""

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from clarion.pipeline.loading import LoadError, load_file, load_files

PIPELINE = """
from clarion.pipeline import pipeline, table, topic

@pipeline(reads=topic("logs"), writes=table("lake/logs"))
def {name}(logs):
    return logs
"""


def write(path: Path, text: str) -> Path:
    path.write_text(textwrap.dedent(text))
    return path


def test_every_pipeline_of_every_file_is_found_in_order(tmp_path):
    first = write(tmp_path / "a.py", PIPELINE.format(name="one") + PIPELINE.format(name="two"))
    second = write(tmp_path / "b.py", PIPELINE.format(name="three"))
    assert [each.name for each in load_files([first, second])] == ["one", "two", "three"]


def test_one_pipeline_under_two_names_of_the_file_is_one(tmp_path):
    assert len(load_file(write(tmp_path / "a.py", PIPELINE.format(name="one") + "\nagain = one\n"))) == 1


def test_a_file_may_import_its_neighbours(tmp_path):
    write(tmp_path / "neighbour_of_a.py", "NAME = 'logs'")
    text = "from neighbour_of_a import NAME\n" + PIPELINE.replace('"logs"', "NAME").format(name="one")
    assert load_file(write(tmp_path / "a.py", text))[0].reads[0].names == ("logs",)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("def f(:\n", ":1: invalid syntax"),
        ("x = 1\n", ": no pipeline in it; put @pipeline"),
        ("\n\n1 / 0\n", ":3: ZeroDivisionError: division by zero"),
        ("import nothing_of_that_name\n", ":1: ModuleNotFoundError"),
        ("w = window('ts', '1 minute')\n", ":1: NameError: .*; add `from pyspark.sql.functions import window`"),
        (
            "from clarion.pipeline import pipeline, table, topic\n\n@pipeline(reads=topic('a'), writes=topic('a'))\n"
            "def same(a):\n    return a\n",
            ":3: pipeline same: it reads topic a and writes to it",
        ),
    ],
)
def test_a_broken_file_is_told_in_one_line_with_its_place(tmp_path, text, reason):
    path = write(tmp_path / "broken.py", text)
    with pytest.raises(LoadError, match=re.escape(str(path)) + reason) as refused:
        load_file(path)
    assert "\n" not in str(refused.value)


def test_a_type_that_only_spark_can_read_is_told_what_to_write_instead(tmp_path):
    """In a process of its own: where a Spark runs already, the file is fine."""
    path = write(
        tmp_path / "typed.py", "from pyspark.sql.functions import udf\n\n@udf('long')\ndef f(x):\n    return x\n"
    )
    command = [sys.executable, "-m", "clarion.cli.main", "pipeline", "list", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert re.fullmatch(rf"clarion: {path}:3: .*write types as objects, `@udf\(LongType\(\)\)`.*\n", done.stderr)


def test_a_file_that_is_not_there_is_said_to_be_not_there(tmp_path):
    with pytest.raises(LoadError, match=r"gone\.py: no such file"):
        load_file(tmp_path / "gone.py")


def test_two_pipelines_of_one_name_would_share_a_checkpoint_and_are_refused(tmp_path):
    first, second = (write(tmp_path / name, PIPELINE.format(name="one")) for name in ("a.py", "b.py"))
    with pytest.raises(LoadError, match=r"b\.py: pipeline one is in .*a\.py too"):
        load_files([first, second])
