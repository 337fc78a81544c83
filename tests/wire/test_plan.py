"""The tables of the protocol: generated from kio, and read into plans."""

from __future__ import annotations

import pytest
from tools.wire_tables import FOLDER, modules

from clarion.wire.apis import APIS, LIST_OFFSETS
from clarion.wire.plan import plan_of, read_plan


@pytest.mark.parametrize("area", modules())
def test_the_tables_are_what_is_generated_from_kio(area):
    assert (FOLDER / f"{area}.py").read_text() == modules()[area], "stale: run `make docs`"


def test_there_are_no_other_tables():
    assert {path.stem for path in FOLDER.glob("*.py")} == {*modules(), "__init__"}


@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.name)
def test_every_version_of_an_api_has_plans_that_are_flexible_when_it_is(api):
    for version in range(api.min_version, api.max_version + 1):
        for direction in ("request", "response"):
            assert plan_of(api.key, version, direction).flexible == api.is_flexible(version)


TABLE = """
1-5 flexible 4+
name string null 3+ = null
count int32 2-3 = -1
rows [struct]
  id uuid
  words [string] 5+ null = null
place struct 4+ tag 1
  port int32 = 9092
is_new bool 4+ tag 0 = true
"""


def names(fields):
    return [field.name for field in fields]


def test_a_version_has_the_fields_that_its_table_gives_it():
    assert names(read_plan(TABLE, 1).fields) == ["name", "rows"]
    assert names(read_plan(TABLE, 2).fields) == ["name", "count", "rows"]
    newest = read_plan(TABLE, 5)
    assert names(newest.fields) == ["name", "rows"]
    assert names(newest.tagged) == ["is_new", "place"], "in the order of their tags"
    assert [names(read_plan(TABLE, version).fields[-1].struct.fields) for version in (4, 5)] == [
        ["id"],
        ["id", "words"],
    ]


def test_null_and_flexible_begin_with_the_version_that_is_named():
    assert [read_plan(TABLE, version).fields[0].is_nullable for version in (2, 3)] == [False, True]
    assert [read_plan(TABLE, version).flexible for version in (3, 4)] == [False, True]


def test_a_default_is_zero_or_empty_where_nothing_else_is_said():
    name, count, rows = read_plan(TABLE, 3).fields
    assert (name.default, count.default, rows.default) == (None, -1, ())
    is_new, place = read_plan(TABLE, 4).tagged
    assert is_new.default is True
    assert place.default.port == 9092


def test_a_version_outside_the_table_is_our_own_mistake():
    with pytest.raises(AssertionError):
        plan_of(LIST_OFFSETS, 99, "request")
