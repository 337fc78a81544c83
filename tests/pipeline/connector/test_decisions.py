"""The driver's pure decisions: how much goes into a batch, which task reads what, how offsets are written down."""

import json
from collections import Counter
from types import SimpleNamespace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clarion.model.ids import TopicPartition
from clarion.pipeline.kafka.range_progress import OffsetRange
from clarion.pipeline.sink.writer import first_turn
from clarion.pipeline.source import live_topics
from clarion.pipeline.source.admission import admit
from clarion.pipeline.source.history import SeamMovedError
from clarion.pipeline.source.offsets import FoundTopic, Missing, Standing, StreamOffsets, forward, stand
from clarion.pipeline.source.options import source_settings
from clarion.pipeline.source.planning import ROWS_PER_TASK_LARGE, ROWS_PER_TASK_MIN, Tasks, plan
from clarion.pipeline.source.stream_reader import Pace
from tests.pipeline.kafka.messages import unhurried

ID = UUID(int=7)
OTHER_ID = UUID(int=8)

places = st.builds(TopicPartition, st.sampled_from("abc"), st.integers(0, 5))
waiting = st.dictionaries(places, st.integers(0, 10_000), min_size=1)


def at(**offsets: int) -> dict[TopicPartition, int]:
    return {TopicPartition("t", int(name[1:])): offset for name, offset in offsets.items()}


def test_without_limits_everything_is_admitted():
    assert admit(at(p0=5), at(p0=100)) == at(p0=100)


def test_rows_are_shared_out_in_proportion():
    assert admit(at(p0=0, p1=0), at(p0=900, p1=100), rows_max=100) == at(p0=90, p1=10)


def test_bytes_are_counted_by_what_messages_weigh():
    start, latest = at(p0=0, p1=0), at(p0=100, p1=100)
    end = admit(
        start, latest, bytes_max=10_100, bytes_per_row={TopicPartition("t", 0): 100, TopicPartition("t", 1): 102}
    )
    assert end == at(p0=50, p1=50)


def test_the_stricter_limit_wins():
    weights = {TopicPartition("t", 0): 10.0}
    assert admit(at(p0=0), at(p0=1000), rows_max=50, bytes_max=1000, bytes_per_row=weights) == at(p0=50)
    assert admit(at(p0=0), at(p0=1000), rows_max=500, bytes_max=1000, bytes_per_row=weights) == at(p0=100)


def test_a_message_larger_than_the_limit_still_goes_through():
    weights = {TopicPartition("t", 0): 5000.0}
    assert admit(at(p0=3), at(p0=10), bytes_max=100, bytes_per_row=weights) == at(p0=4)


def test_a_log_that_lost_its_end_ends_where_it_ends():
    assert admit(at(p0=50, p1=0), at(p0=20, p1=10), rows_max=5) == at(p0=20, p1=5)


@unhurried
@given(waiting, st.integers(1, 20_000))
def test_a_limit_is_used_up_and_never_passed(rows, rows_max):
    start = dict.fromkeys(rows, 100)
    end = admit(start, {tp: 100 + count for tp, count in rows.items()}, rows_max=rows_max)
    admitted = {tp: end[tp] - 100 for tp in rows}
    assert all(0 <= admitted[tp] <= rows[tp] for tp in rows)
    assert sum(admitted.values()) == min(rows_max, sum(rows.values()))
    if rows_max >= len(rows):
        assert all(admitted[tp] for tp in rows if rows[tp]), "a backlog beside it must not starve anybody"


def test_a_few_rows_do_not_wait_until_a_backlog_is_gone():
    assert admit(at(p0=0, p1=0, p2=7), at(p0=10**9, p1=10, p2=8), rows_max=1000) == at(p0=998, p1=1, p2=8)
    assert sum(admit(at(p0=0, p1=0), at(p0=10**9, p1=10), rows_max=1).values()) == 1


def test_where_there_is_no_room_for_a_row_of_each_they_take_turns():
    """Five messages of fifty megabytes are a batch, of twelve partitions."""
    latest = {TopicPartition("t", number): 10**6 for number in range(11)} | {TopicPartition("t", 11): 41}
    here = dict.fromkeys(latest, 40)
    for _ in range(12):
        there = admit(here, latest, rows_max=5)
        assert sum(there.values()) == sum(here.values()) + 5
        here = there
    assert here[TopicPartition("t", 11)] == 41
    others = [offset for tp, offset in here.items() if tp.partition != 11]
    assert max(others) - min(others) <= 2, "and nobody is far ahead"


# ------------------------------------------------------------------------------------------------ planning


def a_range(partition: int, start: int, end: int, topic: str = "t") -> OffsetRange:
    return OffsetRange(topic, ID, partition, start, end)


def test_a_few_messages_are_one_task_however_many_partitions_they_are_in():
    ranges = [a_range(partition, 0, 10) for partition in range(200)]
    assert plan(ranges, cores=8) == [ranges]


def test_nothing_to_read_is_no_task():
    assert plan([a_range(0, 5, 5), a_range(1, 9, 3)], cores=2) == []


def test_a_large_partition_is_read_by_one_task_in_its_order():
    large = a_range(0, 0, 40 * ROWS_PER_TASK_LARGE)
    assert plan([large], cores=8) == [[large]]


def test_partitions_are_shared_out_whole():
    sizes = [9, 5, 4, 3, 3]
    ranges = [a_range(nth, 0, size * ROWS_PER_TASK_MIN) for nth, size in enumerate(sizes)]
    tasks = plan(ranges, cores=2)
    assert [[one.partition for one in task] for task in tasks] == [[0, 3], [1, 2, 4]]


def test_large_amounts_have_more_tasks_than_the_driver_has_cores():
    """The driver's machine need not be the cluster."""
    ranges = [a_range(partition, 0, ROWS_PER_TASK_LARGE) for partition in range(16)]
    assert plan(ranges, cores=2) == [[one] for one in ranges]


def test_where_order_cannot_matter_a_partition_is_split():
    assert plan([a_range(0, 0, 4 * ROWS_PER_TASK_MIN)], 2, Tasks(may_split=True)) == [
        [a_range(0, 0, 2 * ROWS_PER_TASK_MIN)],
        [a_range(0, 2 * ROWS_PER_TASK_MIN, 4 * ROWS_PER_TASK_MIN)],
    ]


def test_where_nobody_knows_the_cores_each_partition_counts_as_one():
    ranges = [a_range(partition, 0, 30_000) for partition in range(6)]
    assert plan(ranges, cores=None) == [[one] for one in ranges]
    assert len(plan([a_range(0, 0, 60_000)], cores=None, asked=Tasks(may_split=True))) == 1


def test_as_many_tasks_as_asked_for():
    assert len(plan([a_range(0, 0, 1000)], 2, Tasks(least=7))) == 7
    assert len(plan([a_range(0, 0, 3)], 2, Tasks(least=7))) == 3


def test_partitions_stay_whole_if_there_are_as_many_as_the_tasks_asked_for():
    ranges = [a_range(partition, 0, 10 + partition) for partition in range(4)]
    assert plan(ranges, 1, Tasks(least=4)) == [[one] for one in ranges]


def test_a_task_has_no_more_rows_than_asked_for():
    tasks = plan([a_range(0, 0, 1000), a_range(1, 0, 10)], 2, Tasks(rows_max=300))
    assert max(sum(one.rows_max for one in task) for task in tasks) <= 300
    whole = [a_range(0, 0, 100), a_range(1, 0, 120)]
    assert plan(whole, 2, Tasks(rows_max=150)) == [[one] for one in whole]


asked = st.builds(
    Tasks,
    least=st.none() | st.integers(1, 50),
    rows_max=st.none() | st.integers(5_000, 100_000),
    may_split=st.booleans(),
)


@unhurried
@given(
    st.lists(st.tuples(st.integers(0, 100_000), st.integers(0, 300_000)), min_size=1, max_size=20),
    st.integers(1, 16),
    asked,
)
def test_every_offset_is_read_once_and_whole_partitions_unless_told_otherwise(sizes, cores, asked):
    ranges = [a_range(partition, start, start + rows) for partition, (start, rows) in enumerate(sizes)]
    tasks = plan(ranges, cores, asked)
    pieces = sorted((one for task in tasks for one in task), key=lambda one: (one.partition, one.start))
    joined: dict[int, list[int]] = {}
    for piece in pieces:
        assert piece.start < piece.end
        bounds = joined.setdefault(piece.partition, [piece.start, piece.start])
        assert bounds[1] == piece.start
        bounds[1] = piece.end
    assert joined == {one.partition: [one.start, one.end] for one in ranges if one.rows_max}
    assert all(tasks)
    if asked == Tasks():
        assert len(pieces) == len(joined)
    if asked.rows_max:
        assert all(sum(one.rows_max for one in task) <= asked.rows_max for task in tasks)


# ------------------------------------------------------------------------------------------------ writing


@pytest.mark.parametrize("is_streaming", [True, False])
def test_small_batches_without_keys_go_round(is_streaming):
    turns = [first_turn(0, batch_id if is_streaming else None) % 4 for batch_id in range(40)]
    assert sorted(Counter(turns).values()) == [10, 10, 10, 10]


def test_tasks_of_one_batch_begin_with_different_partitions():
    assert len({first_turn(task, 7) % 4 for task in range(4)}) == 4


# ------------------------------------------------------------------------------------------------ offsets


@unhurried
@given(st.dictionaries(places, st.integers(0, 2**60)))
def test_offsets_survive_their_json(offsets):
    before = StreamOffsets({tp.topic: ID for tp in offsets}, offsets)
    assert StreamOffsets.from_json(json.loads(json.dumps(before.to_json()))) == before


def test_there_is_one_text_for_the_same_offsets():
    one = StreamOffsets({"b": ID, "a": OTHER_ID}, {TopicPartition("b", 10): 1, TopicPartition("b", 9): 2})
    other = StreamOffsets({"a": OTHER_ID, "b": ID}, {TopicPartition("b", 9): 2, TopicPartition("b", 10): 1})
    assert json.dumps(one.to_json()) == json.dumps(other.to_json())
    assert json.dumps(one.to_json()) == f'{{"a": {{"id": "{OTHER_ID}"}}, "b": {{"id": "{ID}", "9": 2, "10": 1}}}}'


def test_offsets_of_sparks_own_connector_are_read_and_have_no_ids():
    theirs = StreamOffsets.from_json({"t": {"1": 7, "0": 5}})
    assert theirs == StreamOffsets({}, {TopicPartition("t", 0): 5, TopicPartition("t", 1): 7})
    assert theirs.to_json() == {"t": {"0": 5, "1": 7}}


# ------------------------------------------------------------------------------------------------ where a stream stands


def standing_at(topic_id: UUID | None = ID, **offsets: int) -> StreamOffsets:
    return StreamOffsets({} if topic_id is None else {"t": topic_id}, at(**offsets))


def the_topic(*partitions: int, topic_id: UUID = ID) -> dict[str, FoundTopic]:
    return {"t": FoundTopic(topic_id, frozenset(partitions))}


def test_a_topic_that_no_broker_knows_of_keeps_its_place_and_is_told_when_it_stays_away():
    start, missing = standing_at(p0=90), Missing(10.0)
    assert missing.look(start, {}, now=100.0) == Standing(start, frozenset(), ())
    assert missing.look(start, {}, now=109.0) == Standing(start, frozenset(), ())
    assert missing.look(start, {}, now=110.0) == Standing(start, frozenset(), ("topic t is deleted",))
    assert missing.look(start, {}, now=111.0).losses == ("topic t is deleted",), "nobody has heard it yet"
    missing.note_told()
    assert missing.look(start, {}, now=999.0).losses == (), "told once"
    assert missing.look(start, the_topic(0), now=1000.0) == Standing(start, frozenset(at(p0=0)), ())


def test_a_topic_that_is_not_subscribed_any_more_is_told_as_that_at_once_and_keeps_its_place():
    start, missing = standing_at(p0=90), Missing(10.0)
    found = missing.look(start, {}, 0.0, is_subscribed=lambda name, _: name != "t")
    assert found.offsets == start
    assert found.losses == (
        "topic t was read by this query and is not among its topics any more: nothing more of it is read",
    )
    missing.note_told()
    assert missing.look(start, {}, 100.0, is_subscribed=lambda name, _: name != "t").losses == (), "told once"


def test_a_partition_that_is_not_assigned_any_more_is_told_as_that_once_and_keeps_its_place():
    start, missing = standing_at(p0=90, p1=80), Missing(10.0)
    found = missing.look(start, the_topic(0), 0.0, is_subscribed=lambda _, partition: partition != 1)
    assert (found.offsets, found.present) == (start, frozenset(at(p0=90)))
    assert found.losses == (
        "partition t-1 was read by this query and is not among its partitions any more: nothing more of it is read",
    )
    missing.note_told()
    assert missing.look(start, the_topic(0), 100.0, is_subscribed=lambda _, partition: partition != 1).losses == ()


def test_a_log_that_was_cut_is_told_again_to_who_did_not_hear_it(monkeypatch):
    """The archive had moved, so that who was told looked again."""
    heard: list[str] = []

    def on_loss(what: str) -> None:
        heard.append(what)
        if len(heard) == 1:
            raise SeamMovedError

    monkeypatch.setattr(live_topics, "ends_of_epochs", lambda _, epochs: dict.fromkeys(epochs, 50))
    settings = source_settings({"bootstrap.servers": "127.0.0.1:1", "subscribe": "t"})
    client = SimpleNamespace(settings=settings.client, leader_epoch=lambda *_: 2)
    live = live_topics.LiveTopics(client, settings, on_loss)
    live._found = the_topic(0)
    start = StreamOffsets({"t": ID}, at(p0=90), at(p0=1))
    with pytest.raises(SeamMovedError):
        live._check_epochs(start)
    live._check_epochs(start)
    live._check_epochs(start)
    assert len(heard) == 2


def test_a_topic_that_came_back_is_away_anew_the_next_time():
    start, missing = standing_at(p0=90), Missing(10.0)
    missing.look(start, {}, now=0.0)
    missing.look(start, the_topic(0), now=5.0)
    assert missing.look(start, {}, now=14.0).losses == ()


def test_a_topic_is_another_one_only_if_its_id_is():
    found = stand(standing_at(p0=90, p1=10), the_topic(0, topic_id=OTHER_ID))
    assert found.offsets == standing_at(OTHER_ID, p0=0)
    assert found.losses == (f"topic t was deleted and made again (its id was {ID}, it is {OTHER_ID})",)


def test_a_topic_of_another_connectors_checkpoint_is_the_one_there_is():
    assert stand(standing_at(None, p0=90), the_topic(0)) == Standing(standing_at(p0=90), frozenset(at(p0=0)), ())


def test_a_new_partition_begins_at_nought_whatever_is_left_of_it():
    assert stand(standing_at(p0=90), the_topic(0, 1)).offsets == standing_at(p0=90, p1=0)


def test_a_partition_that_a_broker_does_not_mention_keeps_its_place():
    found = stand(standing_at(p0=90, p1=10), the_topic(0))
    assert found.offsets == standing_at(p0=90, p1=10)
    assert found.present == frozenset(at(p0=0))


def test_offsets_never_go_backwards():
    assert forward(standing_at(p0=100, p1=5), at(p0=90, p1=7)) == standing_at(p0=100, p1=7)


numbers = st.integers(0, 3)
looks = st.tuples(st.booleans(), st.sets(numbers), st.dictionaries(numbers, st.integers(0, 200)))


@unhurried
@given(st.dictionaries(numbers, st.integers(0, 100)), st.lists(looks))
def test_however_topics_and_watermarks_flicker_no_offset_is_passed_twice(first, looks):
    missing, now = Missing(), StreamOffsets({"t": ID}, {TopicPartition("t", one): at for one, at in first.items()})
    for is_there, partitions, ends in looks:
        standing = missing.look(now, the_topic(*partitions) if is_there else {}, 0.0)
        assert not standing.losses
        later = forward(standing.offsets, {tp: ends.get(tp.partition, 0) for tp in standing.present})
        assert later.ids == now.ids
        assert all(later.offsets[tp] >= offset for tp, offset in now.offsets.items())
        now = later


# ------------------------------------------------------------------------------------------------ how long to wait


def test_a_source_without_news_waits_long_while_nobody_else_has_any():
    pace, start = Pace(500), standing_at(p0=5)
    for second in range(10):
        assert pace.wait_ms(start, second + 0.01) == 500
        pace.answered(start, second + 1.0)


def test_a_source_without_news_does_not_keep_others_waiting():
    pace, start = Pace(500), standing_at(p0=5)
    pace.answered(start, 1.0)
    assert pace.wait_ms(start, 1.3) == 0, "a batch of another source ran meanwhile"
    assert pace.wait_ms(standing_at(p0=9), 1.3) == 500, "it was our own"
