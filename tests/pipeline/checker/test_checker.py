"""A pipeline's model: whatever happens to topic, tasks, driver and broker, every row is where it belongs.

Random changes of a topic (messages with and without keys, values and headers, retention, gaps that compaction leaves,
more partitions, deleted and made again) go through the source into a table and into a topic, while the driver dies
between any two steps of a batch and the broker is killed and restarted. Then every row is compared with the model: all
that were there to be read are there, unchanged; in the table once; in the topic in the order of their partition; and
nothing was lost without a word.

`make campaign` plays two hundred seeds. One that fails is played again with `CHECKER_SEED=n`.
"""

import os
import random

import pytest

from tests.pipeline import topics
from tests.pipeline.checker.engine import Engine, TableSink, TopicSink
from tests.pipeline.checker.model import ModelTopic
from tests.servers import ClarionProcess
from tests.waiting import wait_for

STEPS = 30
SOURCE, TARGET = "source", "target"
PARTITIONS_MAX = 12
SEEDS = [int(os.environ["CHECKER_SEED"])] if "CHECKER_SEED" in os.environ else [1, 2, 3]
MANY = range(4, 204)

every_seed = pytest.mark.parametrize(
    "seed",
    [*SEEDS, *(pytest.param(seed, marks=pytest.mark.campaign) for seed in MANY if "CHECKER_SEED" not in os.environ)],
)
pytestmark = pytest.mark.timeout(180)


def play(server, topic: ModelTopic, engine: Engine, chance: random.Random) -> None:
    changes = {
        topic.write: 10, engine.restart: 2, topic.shorten: 2, topic.widen: 1, topic.make_again: 1,
        lambda: server.restart(kill=True): 1,
    }  # fmt: skip
    for _ in range(STEPS):
        for change in chance.choices([*changes, None], [*changes.values(), 12], k=1):
            if change is topic.widen and topic.partitions >= PARTITIONS_MAX - 3:
                continue
            if change is not None:
                change()
        if done := engine.step(may_crash=True):
            topic.pass_over(*done)
    idle = 0
    while idle < 3:  # the last change may have been a new topic, which is noticed with the next look
        done = engine.step(may_crash=False)
        idle = 0 if done else idle + 1
        if done:
            topic.pass_over(*done)
    engine.close()


@pytest.fixture
def own_server(tmp_path):
    """One that compacts all the time."""
    with ClarionProcess(tmp_path / "data", env={"CLARION_COMPACTION_CHECK_SECONDS": "0.2"}) as server:
        yield server


@pytest.fixture
def topic(own_server, seed) -> ModelTopic:
    made = ModelTopic(own_server.bootstrap, SOURCE, random.Random(seed))
    made.make()
    return made


@pytest.fixture
def plain_topic(own_server, seed) -> ModelTopic:
    """One of which every message must stay."""
    made = ModelTopic(own_server.bootstrap, SOURCE, random.Random(seed), may_compact=False)
    made.make()
    return made


def test_compaction_leaves_gaps_in_a_model_topic(own_server):
    """Else the checker would never meet one."""
    made = ModelTopic(own_server.bootstrap, SOURCE, random.Random(0))
    while not made.compacted:
        made.make() if not made.topic_id else made.make_again()
    for _ in range(3):
        made.write()
    here = {place: content for place, content in made.messages.items() if place[0] == made.topic_id}
    wait_for(lambda: made.write() or len(topics.contents(own_server.bootstrap, SOURCE)) < len(made._here()), seconds=60)
    assert made.superseded() & here.keys()


def faults_of_table(server, topic: ModelTopic, sink: TableSink, chance: random.Random, log) -> list[str]:
    play(server, topic, Engine(server.bootstrap, SOURCE, sink, chance), chance)
    rows = sink.rows()
    found = dict(rows)
    faults = [] if len(found) == len(rows) else ["a row is there twice"]
    if {place: topic.messages.get(place) for place in found} != found:
        faults.append("a row was changed, or made up")
    return faults + missing_rows(topic, found.keys(), log)


def faults_of_topic(server, topic: ModelTopic, chance: random.Random, log, **options: str) -> list[str]:
    topics.create(server.bootstrap, TARGET, PARTITIONS_MAX, retention_ms="-1")
    sink = TopicSink(server.bootstrap, TARGET)
    play(server, topic, Engine(server.bootstrap, SOURCE, sink, chance, **options), chance)
    places = {content: place for place, content in topic.messages.items()}
    found, faults = set(), []
    for partition, contents in sink.rows().items():
        firsts = list(dict.fromkeys(places[content] for content in contents))  # a batch that came again is no disorder
        if any(place[1] != partition for place in firsts):
            faults.append("a row is in another partition")
        for topic_id in {place[0] for place in firsts}:
            offsets = [place[2] for place in firsts if place[0] == topic_id]
            if offsets != sorted(offsets):
                faults.append("rows are out of order")
        found |= set(firsts)
    return faults + missing_rows(topic, found, log)


def missing_rows(topic: ModelTopic, found, log) -> list[str]:
    missing = topic.messages.keys() - found - topic.superseded()
    faults = [] if missing <= topic.may_be_lost else [f"{len(missing - topic.may_be_lost)} rows are missing"]
    if missing and "messages lost" not in log.text:
        faults.append("rows were lost without a word")
    return faults


@every_seed
def test_every_row_is_in_the_table_once_as_it_was(own_server, topic, seed, tmp_path, caplog):
    assert faults_of_table(own_server, topic, TableSink(tmp_path / "table"), random.Random(seed), caplog) == []


@every_seed
def test_every_row_is_copied_in_the_order_of_its_partition(own_server, topic, seed, caplog):
    assert faults_of_topic(own_server, topic, random.Random(seed + 1_000_000), caplog) == []


# A check that cannot fail is no check: with a rule switched off, it finds what the rule is for.


@pytest.mark.parametrize("seed", [1])
def test_a_table_that_forgets_its_batches_is_found_out(own_server, plain_topic, seed, tmp_path, caplog, monkeypatch):
    monkeypatch.setattr("clarion.pipeline.lake.delta.is_there", lambda *_: False)
    faults = faults_of_table(own_server, plain_topic, TableSink(tmp_path / "table"), random.Random(seed), caplog)
    assert "a row is there twice" in faults


@pytest.mark.parametrize("seed", [1])
def test_partitions_split_over_tasks_are_found_out(own_server, plain_topic, seed, caplog):
    faults = faults_of_topic(own_server, plain_topic, random.Random(seed), caplog, minpartitions="16")
    assert "rows are out of order" in faults


@pytest.mark.parametrize("seed", [1])
def test_a_reader_that_gives_up_at_once_is_found_out(own_server, plain_topic, seed, tmp_path, caplog, monkeypatch):
    def give_up(progress, **_):
        progress.next_offset = progress.range.end
        return "given up"

    monkeypatch.setattr("clarion.pipeline.kafka.range_progress.RangeProgress.on_nothing", give_up)
    faults = faults_of_table(own_server, plain_topic, TableSink(tmp_path / "table"), random.Random(seed), caplog)
    assert any("rows are missing" in each for each in faults)
