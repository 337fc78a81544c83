"""Random changes of topics with restarts and `kill -9` between them and in the middle of them: all is as answered.

Names come, grow, change and go, and come again; messages are written in between. The model knows of every topic its id,
its partitions, its setting and how many messages were acknowledged in this life of its name. A change that was under
way when the process was killed has happened whole or not at all.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import UUID

import pytest

from tests.raw_client import RawClient
from tests.servers import ClarionProcess
from tests.traps.words import batch

NAMES = [f"t{number}" for number in range(25)]
TOPIC = 2  # the kind of resource
SET = 0


@dataclass(frozen=True)
class Known:
    """A topic as it was answered."""

    id: UUID
    partitions: int
    retention: str | None = None
    messages: int = 0  # in partition 0, with acks=all

    def shape(self) -> tuple[UUID, int, str | None]:
        return self.id, self.partitions, self.retention


class Model:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.topics: dict[str, Known] = {}
        self.producer_ids: list[int] = []
        self.changes = 0

    def change(self, client: RawClient) -> None:
        name = self.random.choice(NAMES)
        known = self.topics.get(name)
        if known is None:
            self._create(client, name)
        else:
            act = self.random.choice((self._delete, self._grow, self._configure, self._produce, self._produce))
            act(client, name, known)
        if self.random.random() < 0.1:
            answer = client.ask("init_producer_id", 1, transactional_id=None, transaction_timeout=1000)
            assert answer.error_code == 0
            self.producer_ids.append(answer.producer_id)
        self.changes += 1

    def _create(self, client: RawClient, name: str) -> None:
        partitions = self.random.randrange(1, 4)
        (answer,) = client.ask("create_topics", 7, **creation(name, partitions)).topics
        assert answer.error_code == 0, answer
        self.topics[name] = Known(answer.topic_id, partitions)

    def _delete(self, client: RawClient, name: str, known: Known) -> None:
        (answer,) = client.ask("delete_topics", 4, topic_names=[name], timeout=10_000).responses
        assert answer.error_code == 0, answer
        del self.topics[name]

    def _grow(self, client: RawClient, name: str, known: Known) -> None:
        (answer,) = client.ask("create_partitions", 3, **growth(name, known.partitions + 1)).results
        assert answer.error_code == 0, answer
        self.topics[name] = replace(known, partitions=known.partitions + 1)

    def _configure(self, client: RawClient, name: str, known: Known) -> None:
        value = str(self.random.randrange(10**9, 10**10))
        (answer,) = client.ask("incremental_alter_configs", 1, **setting(name, value)).responses
        assert answer.error_code == 0, answer
        self.topics[name] = replace(known, retention=value)

    def _produce(self, client: RawClient, name: str, known: Known) -> None:
        count = self.random.randrange(1, 30)
        records = [{"name": name, "partition_data": [{"index": 0, "records": batch(count)}]}]
        answer = client.ask("produce", 8, transactional_id=None, acks=-1, timeout=5000, topic_data=records)
        result = answer.responses[0].partition_responses[0]
        assert (result.error_code, result.base_offset) == (0, known.messages)
        self.topics[name] = replace(known, messages=known.messages + count)

    def begin(self, client: RawClient) -> str:
        """A change whose answer nobody waits for; the name that it is about."""
        name = self.random.choice(NAMES)
        known = self.topics.get(name)
        if known is None:
            client.send("create_topics", 7, **creation(name, 3))
        elif self.random.random() < 0.5:
            client.send("delete_topics", 4, topic_names=[name], timeout=10_000)
        else:
            client.send("create_partitions", 3, **growth(name, known.partitions + 2))
        return name

    def check(self, client: RawClient, in_doubt: str | None) -> None:
        found = topics_of(client)
        if in_doubt is not None:
            self._settle(in_doubt, found.get(in_doubt))
        assert {name: one.shape() for name, one in found.items()} == {
            name: one.shape() for name, one in self.topics.items()
        }
        for name, known in self.topics.items():
            assert offsets_of(client, name) == (0, known.messages), name
        assert len(set(self.producer_ids)) == len(self.producer_ids)

    def _settle(self, name: str, found: Known | None) -> None:
        """Of the change under way either nothing has happened or all of it."""
        before = self.topics.pop(name, None)
        if before is None:
            assert found is None or found.partitions == 3
            after = found
        elif found is None:
            after = None
        else:
            assert found.id == before.id
            assert found.partitions in (before.partitions, before.partitions + 2)
            after = replace(before, partitions=found.partitions)
        if after is not None:
            self.topics[name] = after


def creation(name: str, partitions: int) -> dict:
    wanted = {"name": name, "num_partitions": partitions, "replication_factor": 1, "assignments": [], "configs": []}
    return {"topics": [wanted], "timeout": 10_000, "validate_only": False}


def growth(name: str, count: int) -> dict:
    return {"topics": [{"name": name, "count": count, "assignments": None}], "timeout": 10_000, "validate_only": False}


def setting(name: str, value: str) -> dict:
    config = {"name": "retention.ms", "config_operation": SET, "value": value}
    resource = {"resource_type": TOPIC, "resource_name": name, "configs": [config]}
    return {"resources": [resource], "validate_only": False}


def topics_of(client: RawClient) -> dict[str, Known]:
    topics = {
        one.name: Known(one.topic_id, len(one.partitions)) for one in client.ask("metadata", 12, topics=None).topics
    }
    asked = [{"resource_type": TOPIC, "resource_name": name, "configuration_keys": ["retention.ms"]} for name in topics]
    for result in client.ask("describe_configs", 4, resources=asked).results:
        (config,) = result.configs
        own = config.value if config.config_source == 1 else None
        topics[result.resource_name] = replace(topics[result.resource_name], retention=own)
    return topics


def offsets_of(client: RawClient, name: str) -> tuple[int, int]:
    """The first and the next of partition 0."""
    found = []
    for which in (-2, -1):
        partition = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": which}
        topics = [{"name": name, "partitions": [partition]}]
        answer = client.ask("list_offsets", 4, replica_id=-1, isolation_level=0, topics=topics)
        (result,) = answer.topics[0].partitions
        assert result.error_code == 0
        found.append(result.offset)
    return found[0], found[1]


def run(data: Path, changes: int, lives: int, seed: int) -> None:
    model = Model(seed)
    with ClarionProcess(data) as server:
        for life in range(1, lives + 1):
            in_doubt = None
            with RawClient(server.bootstrap) as client:
                while model.changes < changes * life // lives:
                    model.change(client)
                if life % 3:
                    in_doubt = model.begin(client)
                    server.kill9()
            if life % 3 == 0:
                server.terminate()
            server.start()
            with RawClient(server.bootstrap) as client:
                model.check(client, in_doubt)
    assert model.changes >= changes
    assert "Traceback" not in server.stderr
    assert "-stray" not in " ".join(one.name for one in data.iterdir())


def test_a_hundred_changes_with_restarts_and_kills_between_are_all_as_answered(tmp_path: Path):
    run(tmp_path / "data", changes=100, lives=4, seed=1)


@pytest.mark.campaign
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", [2, 3])
def test_fifteen_hundred_changes_with_restarts_and_kills_between_are_all_as_answered(tmp_path: Path, seed: int):
    run(tmp_path / "data", changes=1_500, lives=60, seed=seed)
