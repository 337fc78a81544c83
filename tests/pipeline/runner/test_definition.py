"""What a pipeline's author is told before anything runs."""

import pytest

from clarion.pipeline import DefinitionError, pipeline, table, topic
from clarion.pipeline.definition import PipelineSource, PipelineTarget, Plan
from clarion.pipeline.intervals import why_no_interval
from clarion.pipeline.runner import PipelineRun

LOGS = topic("logs", json="level string")


def declare(function=lambda logs: logs, **parts):
    return pipeline(**{"reads": LOGS, "writes": topic("errors"), "name": "errors", **parts})(function)


def test_a_topic_and_a_table_are_sources_and_targets():
    for each in (topic("a"), table("lake/a")):
        assert isinstance(each, PipelineSource)
        assert isinstance(each, PipelineTarget)


def test_a_pipeline_has_its_functions_name_words_and_file():
    @pipeline(reads=LOGS, writes=[topic("errors", key="level"), table("lake/errors")])
    def errors(logs):
        """Only the errors."""
        return logs

    assert (errors.name, errors.description, errors.path.name) == ("errors", "Only the errors.", "test_definition.py")
    assert [each.description for each in errors.writes] == ["topic errors", "table lake/errors"]


def test_a_pipeline_is_still_a_function_that_a_test_can_call():
    assert declare(lambda rows: [*rows, "more"])(["row"]) == ["row", "more"]


def test_a_function_gets_one_dataframe_per_source():
    declare(lambda logs, users: logs, reads=[LOGS, table("lake/users")])
    with pytest.raises(DefinitionError, match="one DataFrame per source, 2 here"):
        declare(lambda logs: logs, reads=[LOGS, table("lake/users")])


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ({"reads": "logs"}, r"reads= takes topic\(…\) and table\(…\), not 'logs'"),
        ({"writes": []}, "writes= is empty"),
        ({"name": "../up"}, "letters, digits"),
        ({"mode": "upsert"}, "choose from append, update, complete"),
        ({"mode": "update", "writes": table("lake/a")}, "table lake/a cannot take mode='update', only append"),
        ({"writes": topic("logs")}, "reads topic logs and writes to it"),
        ({"reads": topic("lo.*"), "writes": topic("logs2")}, "reads topic logs2 and writes to it"),
        ({"reads": topic(".*errors.*", json="a int")}, r"reads topic errors(\.quarantine)? and writes to it"),
        ({"writes": topic("e.*")}, "a target is one topic, by name"),
        ({"writes": topic(["a", "b"])}, "a target is one topic, by name"),
        ({"reads": topic(by="kind")}, "only a target can be chosen by a column"),
    ],
)
def test_a_pipeline_that_cannot_work_is_refused_with_the_reason(parts, reason):
    with pytest.raises(DefinitionError, match=reason):
        declare(**parts)


def test_update_mode_goes_to_topics_and_to_tables_that_merge():
    declare(mode="update", writes=[topic("errors"), table("lake/errors", mode="merge", key="level")])


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: topic(""), "cannot be empty"),
        (lambda: topic([]), "at least one"),
        (lambda: topic("logs["), "neither a topic's name nor a regular expression"),
        (lambda: topic("logs", json="a int", value="line"), "exclude each other"),
        (lambda: topic("logs", on_bad="ignore"), "choose from quarantine, fail, drop"),
        (lambda: topic("logs", json="a int", on_bad="drop", quarantine="bad"), "keeps no bad records"),
        (lambda: topic("logs", quarantine="no good"), "only letters"),
        (lambda: topic("logs", partitions=0), "at least 1"),
        (lambda: topic("logs", options={"startingOffsets": "latest"}), "startingOffsets is set by the run"),
        (lambda: table(" "), "give the table's folder"),
        (lambda: table("http://lake/t"), "http://lake/t: a table lies in a folder or at s3://"),
        (lambda: table("s3://lake"), "a table needs a name behind the bucket"),
        (lambda: table("t", mode="upsert"), "choose from append, overwrite, merge"),
        (lambda: table("t", options={"compctEvery": 5}), "a table has no option compctevery; it has compactEvery"),
        (lambda: table("t", options={"compactEvery": -5}), "compactEvery=-5: a whole number of at least 0"),
        (lambda: table("t", mode="merge"), "needs key="),
        (lambda: table("t", key="a"), "mode='merge' only"),
        (lambda: table("t", options={"orderBy": "a"}), "orderBy is for mode='merge' only"),
        (
            lambda: table("t", mode="merge", key="a", options={"orderBy": "a", "sourceColumns": "a,b,c,d"}),
            "sourceColumns is for tables that keep every row",
        ),
        (lambda: declare(writes=table("t", mode="merge", key="a")), "only update .*option orderBy which row"),
    ],
)
def test_a_reference_that_makes_no_sense_is_refused_with_the_reason(make, reason):
    with pytest.raises(DefinitionError, match=reason):
        make()


def test_a_name_is_a_name_and_anything_else_a_pattern():
    assert topic("logs.eu-1").pattern is None
    assert topic("logs-.*").pattern == "logs-.*"
    assert topic("logs-.*").matches("logs-eu")
    assert not topic("logs-.*").matches("my-logs-eu")


def test_bad_records_have_a_topic_named_after_the_pipeline_unless_told_otherwise():
    assert LOGS.quarantine_for("errors") == "errors.quarantine"
    assert topic("logs", json="a int", quarantine="bad").quarantine_for("errors") == "bad"
    assert topic("logs", json="a int", on_bad="drop").quarantine_for("errors") is None
    assert topic("logs").quarantine_for("errors") is None


@pytest.mark.parametrize(
    ("writes", "may_split"),
    [
        (topic("errors"), False),
        (table("lake/errors"), True),
        ([table("lake/errors"), topic("errors")], False),
    ],
)
def test_a_partition_is_read_by_several_tasks_only_where_no_target_keeps_its_order(writes, may_split):
    play = PipelineRun(declare(writes=writes), Plan("localhost:9092"))
    assert play._run.may_split == may_split


@pytest.mark.parametrize("more", [{"name": "a"}, {"name": "a.*"}, {"partitions": 3}])
def test_a_topic_chosen_by_a_column_is_nothing_else(more):
    with pytest.raises(DefinitionError, match="the column names the topics"):
        topic(by="kind", **more)


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("1 minute", True),
        (" 1 MINUTES ", True),
        ("1.5 seconds", True),
        ("1 minute 30 seconds", True),
        ("+ 5 minutes", True),
        ("0 seconds", True),
        ("interval 1 minute", True),
        ("INTERVAL '1' MINUTE", True),
        *(
            (each, False)
            for each in ("1m", "1minute", "1 h", "10", "", "1 hour,", "1 ms", "minute", "1 minute30 seconds")
        ),
    ],
)
def test_lengths_of_time_are_those_that_spark_understands(text, is_one):
    """Each was shown to Spark 4.3's IntervalUtils."""
    assert (why_no_interval(text) is None) == is_one
