"""A pipeline's model: whatever happens to topic, tasks, driver and broker, every row is where it belongs.

Random changes of a topic (messages with and without keys, values and headers, retention, gaps that compaction leaves,
more partitions, deleted and made again) go through the source into a table and into a topic, while the driver dies
between any two steps of a batch and the broker is killed and restarted. Then every row is compared with the model: all
that were there to be read are there, unchanged; in the table once; in the topic in the order of their partition; and
nothing was lost without a word.

`make campaign` plays two hundred seeds. One that fails is played again with `CHECKER_SEED=n`, and leaves what was done
to it, when, and what is wrong in `build/checker/`, also if it was killed or its time was over.
"""

import os
import random
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

from tests.pipeline import topics
from tests.pipeline.checker.engine import Engine, TableSink, TopicSink
from tests.pipeline.checker.model import ModelTopic
from tests.servers import ClarionProcess
from tests.waiting import wait_for

JOURNALS = Path(__file__).parents[3] / "build" / "checker"
STEPS = 30
SOURCE, TARGET = "source", "target"
PARTITIONS_MAX = 12
SEEDS = [int(os.environ["CHECKER_SEED"])] if "CHECKER_SEED" in os.environ else [1, 2, 3]
MANY = range(4, 204)

every_seed = pytest.mark.parametrize(
    "seed",
    [*SEEDS, *(pytest.param(seed, marks=pytest.mark.campaign) for seed in MANY if "CHECKER_SEED" not in os.environ)],
)
# Ten to twenty seconds of a core, of which a busy machine may give it a thirtieth: a bound on what hangs, no measure.
pytestmark = pytest.mark.timeout(900)


class Journal:
    """What was done to a pipeline, each line on the disk before it is done; gone with a good end."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._file = path.open("w", buffering=1)
        self._began = time.monotonic()

    def __call__(self, what: str) -> None:
        self._file.write(f"{time.monotonic() - self._began:8.2f}  {what}\n")

    def judge(self, faults: list[str]) -> None:
        self._file.close()
        assert faults == [], f"{', '.join(faults)}; what was done is in {self.path}"
        self.path.unlink()


def play(server, topic: ModelTopic, engine: Engine, chance: random.Random, note: Callable[[str], None]) -> None:
    def kill_the_broker() -> None:
        server.restart(kill=True)

    changes = {
        topic.write: 10, engine.restart: 2, topic.shorten: 2, topic.widen: 1, topic.make_again: 1, kill_the_broker: 1,
    }  # fmt: skip
    for _ in range(STEPS):
        for change in chance.choices([*changes, None], [*changes.values(), 12], k=1):
            if change is topic.widen and topic.partitions >= PARTITIONS_MAX - 3:
                continue
            if change is not None:
                note(change.__name__)
                change()
                note(f"  topic {topic.topic_id}, {topic.partitions} partitions, {len(topic.messages)} messages so far")
        if done := engine.step(may_crash=True):
            topic.pass_over(*done)
    note("no more changes")
    idle = 0
    while idle < 3:  # the last change may have been a new topic, which is noticed with the next look
        done = engine.step(may_crash=False)
        idle = 0 if done else idle + 1
        if done:
            topic.pass_over(*done)
    engine.close()


@pytest.fixture
def journal(request) -> Journal:
    return Journal(JOURNALS / f"{request.node.name}.txt")


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


def faults_of_table(
    server, topic: ModelTopic, sink: TableSink, chance: random.Random, log, note: Callable[[str], None]
) -> list[str]:
    play(server, topic, Engine(server.bootstrap, SOURCE, sink, chance, note), chance, note)
    rows = sink.rows()
    found = dict(rows)
    faults = [] if len(found) == len(rows) else ["a row is there twice"]
    if {place: topic.messages.get(place) for place in found} != found:
        faults.append("a row was changed, or made up")
        for place, content in found.items():
            if topic.messages.get(place) != content:
                note(f"{place} is {content} and was {topic.messages.get(place)}")
    return faults + missing_rows(topic, found.keys(), log, note)


def faults_of_topic(
    server, topic: ModelTopic, chance: random.Random, log, note: Callable[[str], None], **options: str
) -> list[str]:
    topics.create(server.bootstrap, TARGET, PARTITIONS_MAX, retention_ms="-1")
    sink = TopicSink(server.bootstrap, TARGET)
    play(server, topic, Engine(server.bootstrap, SOURCE, sink, chance, note, **options), chance, note)
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
                note(f"of {topic_id} in partition {partition}: {offsets}")
        found |= set(firsts)
    return faults + missing_rows(topic, found, log, note)


def missing_rows(topic: ModelTopic, found, log, note: Callable[[str], None]) -> list[str]:
    missing = topic.messages.keys() - found - topic.superseded()
    for place in sorted(missing):
        note(f"missing{', as it may be' if place in topic.may_be_lost else ''}: {place} {topic.messages[place][0]!r}")
    for line in log.text.splitlines() if missing else ():
        note(line)
    faults = [] if missing <= topic.may_be_lost else [f"{len(missing - topic.may_be_lost)} rows are missing"]
    if missing and "messages lost" not in log.text:
        faults.append("rows were lost without a word")
    return faults


@every_seed
def test_every_row_is_in_the_table_once_as_it_was(own_server, topic, seed, tmp_path, caplog, journal):
    chance = random.Random(seed)
    journal.judge(faults_of_table(own_server, topic, TableSink(tmp_path / "table"), chance, caplog, journal))


@every_seed
def test_every_row_is_copied_in_the_order_of_its_partition(own_server, topic, seed, caplog, journal):
    journal.judge(faults_of_topic(own_server, topic, random.Random(seed + 1_000_000), caplog, journal))


def test_a_journal_stays_where_something_is_wrong_and_goes_with_a_good_end(tmp_path):
    for faults in (["3 rows are missing"], []):
        journal = Journal(tmp_path / "journal.txt")
        journal("write")
        with pytest.raises(AssertionError, match=r"3 rows.*in .*journal.txt") if faults else nullcontext():
            journal.judge(faults)
        assert journal.path.exists() == bool(faults)


def nobody(_: str) -> None:
    """Reads what a run that is meant to fail writes down."""


# A check that cannot fail is no check: with a rule switched off, it finds what the rule is for.


@pytest.mark.parametrize("seed", [1])
def test_a_table_that_forgets_its_batches_is_found_out(own_server, plain_topic, seed, tmp_path, caplog, monkeypatch):
    monkeypatch.setattr("clarion.pipeline.lake.delta.is_there", lambda *_: False)
    sink = TableSink(tmp_path / "table")
    faults = faults_of_table(own_server, plain_topic, sink, random.Random(seed), caplog, nobody)
    assert "a row is there twice" in faults


@pytest.mark.parametrize("seed", [1])
def test_partitions_split_over_tasks_are_found_out(own_server, plain_topic, seed, caplog):
    faults = faults_of_topic(own_server, plain_topic, random.Random(seed), caplog, nobody, minpartitions="16")
    assert "rows are out of order" in faults


@pytest.mark.parametrize("seed", [1])
def test_a_reader_that_gives_up_at_once_is_found_out(own_server, plain_topic, seed, tmp_path, caplog, monkeypatch):
    def give_up(progress, **_):
        progress.next_offset = progress.range.end
        return "given up"

    monkeypatch.setattr("clarion.pipeline.kafka.range_progress.RangeProgress.on_nothing", give_up)
    sink = TableSink(tmp_path / "table")
    faults = faults_of_table(own_server, plain_topic, sink, random.Random(seed), caplog, nobody)
    assert any("rows are missing" in each for each in faults)
