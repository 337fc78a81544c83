"""docs/lake.md: its examples run, and it leaves no option out."""

import inspect
import re
from pathlib import Path

import pytest

from clarion.pipeline import archive, latest, replay, rollup, table
from clarion.pipeline.definition import Pipeline
from clarion.pipeline.lake import options, write_table
from clarion.pipeline.ready import REGISTRY
from tests.pipeline.lake.test_spark_tables import message_rows
from tests.servers import ClarionProcess

PAGE = (Path(__file__).parents[3] / "docs" / "lake.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
CONSOLE = re.findall(r"\$ clarion pipeline run (.*)", PAGE)


def test_every_example_runs(spark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broker: ClarionProcess) -> None:
    from tests.pipeline.topics import create

    monkeypatch.chdir(tmp_path)
    create(broker.bootstrap, "events", 2)
    made = table("lake/events", partition_by="date", options={"sourceColumns": "topic,topic_id,partition,offset"})
    write_table(message_rows(spark, 100).withColumnRenamed("value", "key").selectExpr("key as value", "*"), made)
    for number, example in enumerate(EXAMPLES):
        names = {"spark": spark, "bootstrap": broker.bootstrap}
        # Relative paths of the format itself begin where the JVM was started, which is not here.
        here = example.replace('save("lake', f'save("{tmp_path}/lake')
        exec(compile(here, f"docs/lake.md, example {number}", "exec"), names)
        _look_at(names)


def _look_at(names: dict) -> None:
    """What the example left behind is what the page says."""
    if "frame" in names:
        assert len(names["frame"]) == 100
    if "counts" in names:
        assert names["counts"].rows() == [("events", 100)]
    if "yesterday" in names:
        assert (names["events"].count(), names["yesterday"].count()) == (100, 0)
    assert all(each.description for each in names.values() if isinstance(each, Pipeline))


@pytest.mark.parametrize("line", CONSOLE)
def test_every_command_makes_a_pipeline(line: str) -> None:
    import shlex

    from clarion.pipeline.ready import from_words

    words = shlex.split(line)
    if words[0] in REGISTRY:
        assert isinstance(from_words(words[0], words[1:]), Pipeline)


def test_every_option_is_on_the_page() -> None:
    for name in options._NAMES.values():
        assert re.search(rf"\| [^|]*`{name}`", PAGE), name
    for function in (archive, latest, replay, rollup):
        for name in inspect.signature(function).parameters:
            assert re.search(rf"`{name}[`=]", PAGE), f"{function.__name__}({name}=…)"
    for ready in REGISTRY.values():
        for option in ready.options:
            assert f"`--{option.name}" in PAGE or f"`--no-{option.name}" in PAGE, f"{ready.name} --{option.name}"
