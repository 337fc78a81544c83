"""Every example in the help of `clarion pipeline run`, pasted into a shell beside the first file of the guide."""

import json
import shlex
import signal
import time
from datetime import UTC, datetime, timedelta

import pytest
from confluent_kafka import Producer
from deltalake import DeltaTable

from tests.cli.test_every_command import examples_of
from tests.pipeline.runner.test_commands import SLOW, Desk
from tests.pipeline.runner.test_documentation import EXAMPLES
from tests.pipeline.topics import contents, create
from tests.waiting import wait_for

pytestmark = [pytest.mark.spark, pytest.mark.timeout(4 * SLOW)]


def send_messages(bootstrap: str) -> None:
    """An error, and one of an hour later, with which the first one's minute is over; and an event."""
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce("events", b"one")
    for minutes in (0, 60):
        moment = datetime.now(UTC) + timedelta(minutes=minutes)
        line = {"ts": moment.isoformat(), "level": "ERROR", "service": "checkout", "latency_ms": 1.5}
        producer.produce("logs", json.dumps(line), timestamp=int(time.time() * 1000))
    assert producer.flush(30) == 0


def rows_in(desk: Desk, table: str) -> int:
    folder = desk.folder / table
    return DeltaTable(folder).to_pyarrow_table().num_rows if DeltaTable.is_deltatable(str(folder)) else 0


def test_every_example_of_the_help_works_when_it_is_pasted(tmp_path, own_server):
    desk = Desk(tmp_path)
    desk.environment["CLARION_BOOTSTRAP"] = own_server.bootstrap
    (tmp_path / "errors.py").write_text(EXAMPLES[0])
    for topic in ("logs", "errors_per_minute", "events"):
        create(own_server.bootstrap, topic, 1)
    send_messages(own_server.bootstrap)

    stream, batch, archive = [shlex.split(example)[2:] for example in examples_of("pipeline run")]
    run_until(desk, stream, lambda: rows_in(desk, "lake/errors_per_minute") == 1)
    assert len(contents(own_server.bootstrap, "errors_per_minute")) == 1

    done = desk(*batch)
    assert done.returncode == 0, done.stderr
    assert len(contents(own_server.bootstrap, "errors_per_minute")) == 3, "a batch has both minutes, open or not"

    run_until(desk, archive, lambda: rows_in(desk, "lake/events") == 1)


def run_until(desk: Desk, words: list[str], is_done) -> None:
    """A stream, which is ended with Ctrl-C when it has come so far."""
    with desk.begin(*words) as run:
        wait_for(lambda: run.poll() is not None or is_done(), seconds=SLOW, what=" ".join(words))
        run.send_signal(signal.SIGINT)
        assert run.wait(SLOW) == 0, desk.errors()
