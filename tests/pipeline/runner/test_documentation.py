"""docs/pipelines.md: its examples load, and it leaves nothing out."""

import inspect
import re
from pathlib import Path

import pytest

from clarion.pipeline import pipeline, spark_session, table, topic
from clarion.pipeline.loading import load_file
from clarion.pipeline.metrics import COUNTERS, GAUGES
from clarion.pipeline.progress import PipelineProgress

PAGE = (Path(__file__).parents[3] / "docs" / "pipelines.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("example", [each for each in EXAMPLES if "@pipeline" in each])
def test_every_example_is_a_pipeline(example, tmp_path):
    (tmp_path / "example.py").write_text(example)
    assert load_file(tmp_path / "example.py")


def test_every_option_is_on_the_page():
    for function in (pipeline, topic, table):
        for name in inspect.signature(function).parameters:
            assert re.search(rf"(?:[`(]{name}\b|\b{name}=)", PAGE), f"{function.__name__}({name}=…)"


def test_every_metric_is_on_the_page():
    for name in (*(f"{each}_total" for each in COUNTERS), *GAUGES, "rows_per_second"):
        assert f"| `clarion_pipeline_{name}` |" in PAGE


def test_every_field_of_the_json_is_on_the_page():
    for name in PipelineProgress("one").as_json(0.0):
        assert f"`{name}`" in PAGE


def test_the_settings_of_a_session_are_on_the_page():
    quiet = {"spark.driver.extraJavaOptions", "spark.ui.showConsoleProgress", "spark.driver.bindAddress"}
    for name in spark_session.defaults("local[2]").keys() - quiet:
        assert name.removesuffix(".enabled") in PAGE or "changelog" in name or "arrow" in name, name
