"""docs/spark.md: its examples run, and it leaves no option out."""

import re
from pathlib import Path

import pytest

from clarion.pipeline.connector_options import CLIENT_NAMES, OptionError
from clarion.pipeline.sink.options import SINK_CLIENT_NAMES, SINK_NAMES, sink_settings
from clarion.pipeline.source.options import (
    BYTES_PER_TRIGGER_DEFAULT,
    SOURCE_CLIENT_NAMES,
    SOURCE_NAMES,
    source_settings,
)
from clarion.pipeline.source.rows import arrow_schema
from tests.pipeline.connector.frames import PATIENCE_S
from tests.pipeline.topics import contents, create, fill, numbered

PAGE = (Path(__file__).parents[3] / "docs" / "spark.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
ALL_NAMES = {*SOURCE_NAMES, *SOURCE_CLIENT_NAMES, *SINK_NAMES, *SINK_CLIENT_NAMES, *CLIENT_NAMES}


@pytest.mark.timeout(240)
def test_every_example_runs(spark, own_server, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for topic in ("events", "alerts", "numbers"):
        create(own_server.bootstrap, topic)
    fill(own_server.bootstrap, "events", [*numbered(150), b"an ERROR"])
    names = {}
    for number, example in enumerate(EXAMPLES):
        here = example.replace("localhost:9092", own_server.bootstrap).replace("checkpoints/", f"{tmp_path}/")
        exec(compile(here, f"docs/spark.md, example {number}", "exec"), names)
    assert names["query"].processAllAvailable() is None
    names["query"].stop()
    assert names["query"].awaitTermination(PATIENCE_S)
    assert contents(own_server.bootstrap, "alerts") == [b"an ERROR"]
    assert len(contents(own_server.bootstrap, "numbers")) == 100
    assert (tmp_path / "clarion.zip").exists()


@pytest.mark.parametrize("name", sorted(ALL_NAMES))
def test_every_option_is_on_the_page(name):
    assert re.search(rf"^\|[^|]*`{re.escape(name)}`", PAGE, re.MULTILINE) or f"the option `{name}`" in PAGE


@pytest.mark.parametrize("name", arrow_schema(with_headers=True, with_topic_id=True).names)
def test_every_column_is_on_the_page(name):
    assert re.search(rf"^\|[^|]*`{name}`", PAGE, re.MULTILINE)


def test_defaults_are_as_the_page_says():
    assert f"| `maxBytesPerTrigger` | {BYTES_PER_TRIGGER_DEFAULT} |" in PAGE


MOVING = PAGE.partition("## Coming from Spark's Kafka connector")[2].partition("\n## ")[0]
ROWS = re.findall(r"^\| (`[^|]*) \| (used|ignored|refused) \|", MOVING, re.MULTILINE)
FATES = [(name, fate) for names, fate in ROWS for name in re.findall(r"`([^`]+)`", names)]
# Every option of the connector, as its guide lists them.
THEIRS = {
    "assign",
    "subscribe",
    "subscribePattern",
    "kafka.bootstrap.servers",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsets",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "endingOffsets",
    "failOnDataLoss",
    "kafkaConsumer.pollTimeoutMs",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "minPartitions",
    "maxRecordsPerPartition",
    "groupIdPrefix",
    "kafka.group.id",
    "includeHeaders",
    "startingOffsetsByTimestampStrategy",
    "topic",
}
VALUES = {
    "assign": '{"t": [0]}',
    "startingOffsets": "earliest",
    "endingOffsets": "latest",
    "startingTimestamp": "5",
    "endingTimestamp": "5",
    "startingOffsetsByTimestamp": '{"t": {"0": 5}}',
    "endingOffsetsByTimestamp": '{"t": {"0": 5}}',
    "startingOffsetsByTimestampStrategy": "latest",
    "failOnDataLoss": "false",
    "includeHeaders": "true",
    "maxTriggerDelay": "5m",
    "kafka.bootstrap.servers": "b:9092",
    "subscribe": "t",
    "subscribePattern": "t.*",
    "topic": "t",
}


def test_the_table_for_moving_over_names_every_option_of_the_connector():
    assert {name for name, _ in FATES} >= THEIRS


@pytest.mark.parametrize(("name", "fate"), FATES)
def test_options_of_sparks_connector_do_what_the_table_says(name, fate, caplog, monkeypatch):
    monkeypatch.setattr("clarion.pipeline.connector_options._warned", set())
    given = {"kafka.bootstrap.servers": "b:9092", name: VALUES.get(name, "1")}
    settings = sink_settings if name == "topic" else source_settings
    if settings is source_settings and name not in ("assign", "subscribe", "subscribePattern"):
        given["subscribe"] = "t"
    lower = {key.lower(): value for key, value in given.items()}
    if fate == "refused":
        with pytest.raises(OptionError, match=re.escape(f"option {name} cannot be had")):
            settings(lower)
        return
    assert settings(lower)
    warned = [each.getMessage() for each in caplog.records]
    assert warned == ([f"option {name.lower()} means nothing here and is ignored"] if fate == "ignored" else [])
