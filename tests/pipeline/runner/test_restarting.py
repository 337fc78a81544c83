"""Which failures are worth another try, how long it waits for it, and a run that goes on by itself."""

import os
import signal

import pytest
from pyspark.errors import AnalysisException

from clarion.pipeline import DefinitionError
from clarion.pipeline.connector_options import OptionError
from clarion.pipeline.kafka.errors import ConnectionLostError
from clarion.pipeline.lake.errors import LakeError, LakeRetryError
from clarion.pipeline.restarting import (
    HEALTHY_SECONDS,
    TRIES_MAX,
    WAIT_SECONDS_FIRST,
    WAIT_SECONDS_MAX,
    Restarts,
    can_be_mended,
)
from clarion.world.randomness import SystemRandomness
from tests.pipeline.runner.test_commands import LINES, SLOW, SMALL, desk  # noqa: F401
from tests.pipeline.runner.test_runs import receive, send
from tests.pipeline.topics import create
from tests.waiting import wait_for


class AlwaysLeast:
    def bytes(self, count: int) -> bytes:
        return bytes(count)


def worker_died_of(reason: str) -> RuntimeError:
    """As a streaming query tells of what happened in a task."""
    return RuntimeError(
        "[STREAM_FAILED] Query terminated with exception: Job aborted due to stage failure: Task 0 failed 4 times: "
        f"org.apache.spark.api.python.PythonException: Traceback (most recent call last):\n  File …\n{reason}\n\tat X"
    )


@pytest.mark.parametrize(
    "error",
    [
        ConnectionLostError("127.0.0.1:9092 is gone"),
        worker_died_of("clarion.pipeline.kafka.errors.ConnectionLostError: 127.0.0.1:9092 is gone"),
        worker_died_of("ValueError: of somebody's function, with this row and at this moment"),
        LakeRetryError("lake/t: lost the race"),
        worker_died_of("clarion.pipeline.lake.errors.LakeRetryError: lost the race"),
        OSError("No space left on device"),
        AnalysisException("[PYTHON_DATA_SOURCE_ERROR] Failed to plan: Python worker failed to connect back."),
    ],
)
def test_what_passes_is_worth_another_try(error):
    assert can_be_mended(error)


@pytest.mark.parametrize(
    "error",
    [
        DefinitionError("is `return` missing?"),
        OptionError("there is no option subscirbe"),
        NameError("name 'window' is not defined"),
        LakeError("column n is long in the table and string in what is to be written"),
        AnalysisException("[UNRESOLVED_COLUMN] A column with name `levle` cannot be resolved."),
        AnalysisException("[PYTHON_DATA_SOURCE_ERROR] x\nclarion.pipeline.connector_options.OptionError: wrong"),
        worker_died_of("clarion.pipeline.kafka.errors.DataLossError: logs-0: offsets 3 to 9 are gone"),
        worker_died_of("clarion.pipeline.lake.errors.LakeError: the table has no column b, and mergeSchema is off"),
        worker_died_of("clarion.pipeline.kafka.errors.RefusedRowError: row 3 names no topic"),
        RuntimeError("[USER_RAISED_EXCEPTION] bad record in later-0 at offset 0: it does not fit the declared JSON"),
    ],
)
def test_what_somebody_has_to_change_is_not(error):
    assert not can_be_mended(error)


def test_waits_grow_to_a_limit_and_so_does_the_number_of_tries():
    restarts = Restarts(AlwaysLeast())
    waits = [restarts.wait_after(0.0) for _ in range(TRIES_MAX)]
    assert waits[:3] == [WAIT_SECONDS_FIRST * factor / 2 for factor in (1, 2, 4)]
    assert max(waits) == WAIT_SECONDS_MAX / 2
    assert restarts.wait_after(0.0) is None


def test_pipelines_that_failed_together_do_not_come_back_together():
    waits = {Restarts(SystemRandomness()).wait_after(0.0) for _ in range(20)}
    assert len(waits) > 10
    assert all(WAIT_SECONDS_FIRST / 2 <= each <= WAIT_SECONDS_FIRST for each in waits)


def test_a_pipeline_that_has_run_well_has_all_its_tries_again():
    restarts = Restarts(AlwaysLeast())
    for _ in range(TRIES_MAX):
        restarts.wait_after(0.0)
    assert restarts.wait_after(HEALTHY_SECONDS) == WAIT_SECONDS_FIRST / 2


@pytest.mark.timeout(400)
def test_a_failed_pipeline_goes_on_where_it_was_and_a_wrong_one_ends_at_once(stage):
    create(stage.bootstrap, "shaky", 1)
    send(stage.bootstrap, "shaky", [b"one", b"two"])
    path = stage.file(
        """
        from pathlib import Path
        from pyspark.sql.functions import col, udf
        from clarion.pipeline import pipeline, topic

        tries = Path("{folder}/tries")

        @udf("string")
        def shouted(text):
            if text == "one":
                tries.open("a").write(".")
                if len(tries.read_text()) <= 4:
                    raise ValueError("not yet")
            return text.upper()

        @pipeline(reads=topic("shaky", value="line"), writes=topic("shaky-shouted", value="loud", partitions=1))
        def shaky(lines):
            return lines.select(shouted("line").alias("loud"))

        @pipeline(reads=topic("shaky"), writes=topic("nothing"))
        def wrong(lines):
            return lines.select("levle")
        """.replace("{folder}", str(stage.folder))
    )
    shaky, wrong = stage.play(path, restarts=True).progresses
    assert (shaky.state, shaky.restarts, shaky.last_error) == ("ended", 1, "ValueError: not yet")
    assert [each.value() for each in receive(stage.bootstrap, "shaky-shouted", 2)] == [b"ONE", b"TWO"]
    (detail,) = {detail for state, detail in stage.seen if state == "restarting"}
    assert detail.endswith(" s, try 1 of 10: ValueError: not yet")
    assert (wrong.state, wrong.restarts) == ("failed", 0)


@pytest.mark.campaign
@pytest.mark.timeout(3 * SLOW)
def test_a_spark_that_was_killed_is_replaced(desk, broker):  # noqa: F811
    create(broker.bootstrap, "enduring")
    send(broker.bootstrap, "enduring", [b'{"line": "one"}'])
    (desk.folder / "lines.py").write_text(LINES.replace("spoken", "enduring"))
    with desk.begin("run", "lines.py", "--json", "--restart", "-b", broker.bootstrap, *SMALL) as run:
        wait_for(lambda: desk.reports() and desk.reports()[-1]["batch"] == 0, seconds=SLOW, what="the first batch")
        os.kill(desk.spark_pid("lines"), signal.SIGKILL)
        send(broker.bootstrap, "enduring", [b'{"line": "two"}'])
        wait_for(lambda: desk.reports()[-1]["batch"] == 1, seconds=SLOW, what="the second batch, on another Spark")
        last = desk.reports()[-1]
        assert (last["state"], last["restarts"], last["rows_out"]) == ("running", 1, 2)
        run.send_signal(signal.SIGTERM)
        assert run.wait(SLOW) == 0
    assert "Traceback" not in desk.errors()
