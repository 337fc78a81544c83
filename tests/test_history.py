"""The checker finds every anomaly it claims to look for, and nothing in an honest history."""

import pytest

from tests.history import Anomaly, Asked, Commit, Committed, Outcome, Poll, Send, anomalies, check

A, B, C, D = "abcd"


def sent(value: str, offset: int | None = None, *, producer: str = "p", outcome: Outcome = Outcome.ACKED) -> Send:
    return Send(producer, "t-0", value, outcome, offset)


def poll(*messages: tuple[int, str], consumer: str = "c") -> Poll:
    return Poll(consumer, "t-0", list(messages))


def kinds(history: list, **how: object) -> set[str]:
    return {one.kind for one in anomalies(history, **how)}


def test_an_honest_history_has_none():
    history = [
        sent(A, 0),
        sent(B, 1),
        poll((0, A)),
        sent(C, 2, producer="q"),
        poll((1, B), (2, C)),
        poll((0, A), consumer="d"),
    ]
    assert anomalies(history) == []
    check(history)


def test_a_send_that_nobody_knows_the_end_of_may_be_there_or_not():
    unknown = sent(B, outcome=Outcome.UNKNOWN)
    assert kinds([sent(A, 0), unknown, poll((0, A))]) == set()
    assert kinds([sent(A, 0), unknown, poll((0, A), (1, B))]) == set()


@pytest.mark.parametrize(
    ("kind", "history"),
    [
        ("lost-write", [sent(A, 0), sent(B, 1), sent(C, 2), poll((0, A), (2, C))]),
        ("lost-write", [sent(A), poll()]),
        ("unseen", [sent(A, 0), sent(B, 1), poll((0, A))]),
        ("phantom", [poll((0, A))]),
        ("aborted-read", [sent(A, outcome=Outcome.REFUSED), poll((0, A))]),
        ("duplicate", [sent(A, 0), poll((0, A), (1, A))]),
        ("inconsistent-offsets", [sent(A, 0), sent(B, 1), poll((0, A), (1, B)), poll((0, B), consumer="d")]),
        ("inconsistent-offsets", [sent(A, 3), sent(B, 4), poll((3, B), (4, A))]),
        ("inconsistent-offsets", [sent(A, 0), sent(B, 0, producer="q")]),
        ("nonmonotonic-send", [sent(A, 1), sent(B, 0), poll((0, B), (1, A))]),
        ("nonmonotonic-send", [sent(A), sent(B, outcome=Outcome.UNKNOWN), poll((0, B), (1, A))]),
        ("nonmonotonic-poll", [sent(A, 0), sent(B, 1), poll((0, A), (1, B)), poll((0, A))]),
        ("nonmonotonic-poll", [sent(A, 0), poll((0, A)), poll((0, A))]),
        ("poll-skip", [sent(A, 0), sent(B, 1), sent(C, 2), poll((0, A)), poll((2, C)), poll((1, B), consumer="d")]),
        ("gap", [sent(A, 0), sent(B, 2), poll((0, A), (2, B))]),
    ],
)
def test_each_anomaly_is_found(kind: str, history: list):
    assert kind in kinds(history)
    with pytest.raises(AssertionError, match=kind):
        check(history)


def test_offsets_may_be_missing_where_they_have_a_reason():
    assert kinds([sent(A, 0), sent(B, 2), poll((0, A), (2, B))], dense=False) == set()


def test_what_was_deleted_on_purpose_is_not_lost():
    history = [sent(A, 0), sent(B, 1), poll((1, B))]
    assert kinds(history) == {"lost-write", "gap"}
    assert kinds(history, start_offsets={"t-0": 1}) == set()


def test_partitions_are_judged_apart():
    assert anomalies([Send("p", "t-0", A, Outcome.ACKED, 0), Poll("c", "t-1", [(0, A)])]) == [
        Anomaly("unseen", "t-0", "'a', acked at 0"),
        Anomaly("phantom", "t-1", "nobody sent 'a', read at [0]"),
    ]


def commit(offset: int, outcome: Outcome = Outcome.ACKED) -> Commit:
    return Commit("g", "t-0", offset, outcome)


@pytest.mark.parametrize("found", [5, 7])
def test_a_commit_without_an_answer_may_count_or_not(found: int):
    assert kinds([commit(5), commit(7, Outcome.UNKNOWN), Committed("g", "t-0", found)]) == set()


def test_commits_that_go_back_are_found():
    assert kinds([commit(5), Committed("g", "t-0", None)]) == {"commit-lost"}
    assert kinds([commit(3), commit(5), Committed("g", "t-0", 3)]) == {"commit-lost"}
    history = [commit(5), commit(7, Outcome.UNKNOWN), Committed("g", "t-0", 7), Committed("g", "t-0", 5)]
    assert kinds(history) == {"commit-lost"}, "what was read once stays"


def committed(offset: int | None, asked: Asked) -> Committed:
    return Committed("g", "t-0", offset, asked)


def test_who_asks_while_another_waits_for_his_answer_may_hear_of_less_than_he_will():
    early, late = Asked("g", "t-0"), Asked("g", "t-0")
    begun = [commit(5), early, late, commit(6, Outcome.UNKNOWN)]
    assert kinds([*begun, committed(5, late), commit(6), committed(6, early)]) == set()
    assert kinds([*begun, commit(6), committed(6, late), committed(5, early)]) == set(), "it was under way"


@pytest.mark.parametrize("known", [[commit(6)], [Committed("g", "t-0", 6)]])
def test_who_asks_when_somebody_knows_of_a_commit_hears_of_it(known: list):
    early, late = Asked("g", "t-0"), Asked("g", "t-0")
    history = [commit(5), early, commit(6, Outcome.UNKNOWN), *known, late]
    assert kinds([*history, committed(6, late), committed(5, early)]) == set()
    assert kinds([*history, committed(5, late), committed(5, early)]) == {"commit-lost"}
    assert kinds([*history, committed(None, late)]) == {"commit-lost"}


def test_commits_that_nobody_made_are_found():
    assert kinds([commit(5), Committed("g", "t-0", 6)]) == {"commit-phantom"}
    assert kinds([Committed("g", "t-0", 5), commit(5)]) == {"commit-phantom"}, "not yet"
