"""Timers against the obvious model: a dictionary that is searched."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from clarion.groups.timers import TimerKey, TimerKind, Timers

keys = st.builds(TimerKey, st.sampled_from(TimerKind), st.sampled_from("gh"), st.sampled_from("ab"))
events = st.lists(
    st.tuples(st.sampled_from(["start", "cancel", "advance"]), keys, st.integers(0, 20)),
    max_size=60,
)


@given(events)
def test_timers_fire_when_they_should_and_only_then(history):
    timers, model, now = Timers(), {}, 0
    for what, key, ms in history:
        if what == "start":
            timers.start(key, now + ms)
            model[key] = now + ms
        elif what == "cancel":
            timers.cancel(key)
            model.pop(key, None)
        else:
            now += ms
            due = {one for one, deadline in model.items() if deadline <= now}
            fired = timers.pop_due(now)
            assert [model[one] for one in fired] == sorted(model[one] for one in fired)
            assert set(fired) == due
            assert len(fired) == len(due)
            model = {one: deadline for one, deadline in model.items() if one not in due}
        assert timers.next_deadline_ms() == min(model.values(), default=None)
        assert all((one in timers) == (one in model) for one in (key, *model))


def test_a_member_that_beats_costs_one_heap_entry_however_often():
    timers = Timers()
    for now in range(10_000):
        timers.start(TimerKey(TimerKind.SESSION, "g", "m"), now + 45_000)
    assert len(timers._heap) == 1
