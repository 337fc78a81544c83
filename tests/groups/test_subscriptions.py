"""Regular expressions over topics: bounded before they are tried, and tried once on every name."""

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clarion.groups import subscriptions
from clarion.groups.subscriptions import REGEXES_MAX, check_regex, resolve, resolve_again
from clarion.groups.topics import TopicInfo, TopicsView
from clarion.model.errors import ErrorCode, KafkaError

names = st.sets(st.text("abct", min_size=1, max_size=3))


def view_of(topics, before=None) -> TopicsView:
    return TopicsView({name: TopicInfo(UUID(int=1), 1) for name in topics}, before)


@given(st.lists(names, min_size=1, max_size=6), st.lists(st.booleans(), min_size=6, max_size=6))
def test_from_change_to_change_the_topics_are_those_that_match(changes, is_asked):
    view = view_of(())
    for topics, asked in zip(changes, is_asked, strict=False):
        view = view_of(topics, before=view)
        resolve_again(view)
        if asked:
            assert resolve("a.*|t", view) == tuple(sorted(n for n in topics if n.startswith("a") or n == "t"))


def test_a_change_of_the_topics_looks_at_new_names_only(monkeypatch):
    tried = []

    class Pattern:
        def fullmatch(self, name):
            tried.append(name)
            return True

    monkeypatch.setattr(subscriptions, "_compiled", lambda regex: Pattern())
    first = view_of(["a", "b"])
    assert resolve(".*", first) == ("a", "b")
    second = view_of(["b", "c"], before=first)
    resolve_again(second)
    assert resolve(".*", second) == ("b", "c")
    assert tried == ["a", "b", "c"]


@pytest.mark.parametrize(
    "regex",
    ["|".join(f".*{number}.*a" for number in range(1200)), "(.{0,60}){0,60}x", r"(?i)\p{L}{1,100}"],
    ids=["alternatives", "repeated", "letters"],
)
def test_an_expression_that_takes_long_to_try_is_refused(regex):
    with pytest.raises(KafkaError) as caught:
        check_regex(regex)
    assert caught.value.code is ErrorCode.INVALID_REGULAR_EXPRESSION


def test_hundreds_of_names_in_one_expression_are_fine():
    check_regex("|".join(f"team-{number}[.]orders[.]v[0-9]+" for number in range(300)))


def test_remembered_expressions_have_a_limit():
    view = view_of(["t"])
    for number in range(REGEXES_MAX + 10):
        assert resolve(f"t|{number}", view) == ("t",)
    assert len(view.resolved) == REGEXES_MAX
    assert f"t|{REGEXES_MAX + 9}" in view.resolved
