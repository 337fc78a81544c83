"""The Java client's `group.protocol` is switched by a rolling restart, under load: classic → consumer → classic."""

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from bench.peers.kafka import tool_command

from tests.clients.adapters import Confluent
from tests.clients.workers import Pump
from tests.waiting import wait_for

VERIFIABLE_CONSUMER = "org.apache.kafka.tools.VerifiableConsumer"
PARTITIONS = 6
JVM_S = 60  # a JVM that starts, joins and rebalances on a busy machine
RANGE = "org.apache.kafka.clients.consumer.RangeAssignor"
COOPERATIVE = "org.apache.kafka.clients.consumer.CooperativeStickyAssignor"

pytestmark = [pytest.mark.kafka, pytest.mark.campaign]


class JavaConsumer:
    """Kafka's own VerifiableConsumer: it commits after every poll, and tells what it does line by line."""

    def __init__(self, output: Path, bootstrap: str, topic: str, *how: str) -> None:
        self._output = output
        args = ["--bootstrap-server", bootstrap, "--topic", topic, "--group-id", topic, "--verbose"]
        with output.open("w") as out:
            command = tool_command(VERIFIABLE_CONSUMER, [*args, "--reset-policy", "earliest", *how])
            self._process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)

    @property
    def seen(self) -> list[int]:
        return [int(event["value"]) for event in self._events() if event["name"] == "record_data"]

    @property
    def owned(self) -> set[int]:
        assert self._process.poll() is None, f"it ended by itself: {self._output.read_text()[-3000:]}"
        owned: set[int] = set()
        for event in self._events():
            numbers = {one["partition"] for one in event.get("partitions", ())}
            if event["name"] == "partitions_assigned":
                owned |= numbers
            elif event["name"] == "partitions_revoked":
                owned -= numbers
        return owned

    def leave(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(JVM_S)
        names = [event["name"] for event in self._events()]
        assert names[-1] == "shutdown_complete", self._output.read_text()[-3000:]

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait(JVM_S)

    def _events(self) -> list[dict[str, Any]]:
        whole = self._output.read_text().rpartition("\n")[0]
        return [json.loads(line) for line in whole.splitlines() if line.startswith("{")]


@pytest.mark.parametrize("strategy", [RANGE, COOPERATIVE], ids=["range", "cooperative"])
@pytest.mark.parametrize("instances", [False, True], ids=["dynamic", "static"])
def test_a_rolling_switch_with_the_java_client_loses_nothing(
    jars_or_skip: None, bootstrap: str, unique: str, tmp_path: Path, strategy: str, instances: bool
) -> None:
    admin = Confluent(bootstrap)
    admin.create_topic(unique, PARTITIONS)
    started: list[JavaConsumer] = []
    classic = ("--group-protocol", "classic", "--assignment-strategy", strategy, "--session-timeout", "10000")

    def start(at: int, *how: str) -> JavaConsumer:
        static = ("--group-instance-id", f"instance-{at}") if instances else ()
        started.append(JavaConsumer(tmp_path / f"{len(started)}.out", bootstrap, unique, *how, *static))
        return started[-1]

    def wait_until_shared(consumers: list[JavaConsumer]) -> None:
        def is_shared() -> bool:
            owned = [consumer.owned for consumer in consumers]
            return all(owned) and sorted(number for one in owned for number in one) == list(range(PARTITIONS))

        wait_for(is_shared, seconds=JVM_S, what="an assignment without gaps and overlaps")

    pump = Pump(admin, unique, PARTITIONS)
    try:
        consumers = [start(0, *classic), start(1, *classic)]
        wait_until_shared(consumers)
        for how in (("--group-protocol", "consumer"), classic):
            for at in range(2):
                consumers[at].leave()
                consumers[at] = start(at, *how)
                wait_until_shared(consumers)
        first = len(pump.sent) + 50  # what is sent from now on falls into the last, stable assignment
        wait_for(lambda: len(pump.sent) > first + 150, what="load on a stable assignment")
        sent = {int(value) for value in pump.stop()}
        wait_for(
            lambda: sent == {value for consumer in started for value in consumer.seen},
            seconds=JVM_S,
            what="every message to be processed",
        )
        late = [value for consumer in started for value in consumer.seen if value >= first]
        assert len(late) == len(set(late)), "a message of the stable time was processed twice: two owners"
        for consumer in consumers:
            consumer.leave()
    finally:
        for consumer in started:
            consumer.close()
