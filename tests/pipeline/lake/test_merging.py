"""The newest row per key stays, whichever batch it comes with; without Spark."""

import itertools
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import pyarrow as pa
import pytest

from clarion.pipeline.lake import delta
from clarion.pipeline.lake.commits import WriterBatch
from clarion.pipeline.lake.compaction import tidy_sometimes
from clarion.pipeline.lake.errors import LakeError
from clarion.pipeline.lake.merging import DELETED, merge, merge_unseen, ordered
from clarion.pipeline.lake.options import TableOptions, read_options
from clarion.pipeline.lake.ranges import Origin, SourceRange
from clarion.pipeline.lake.tables import MERGED, check_merge
from clarion.pipeline.table_reference import table

AGE = re.compile(r'"deletionTimestamp":\d+')
KINDS = [
    ("user", pa.string()),
    ("ts", pa.int64()),
    ("seq", pa.int64()),
    ("word", pa.string()),
    (DELETED, pa.bool_()),
]
BY_TIME = ordered(("user",), ("ts", "seq"), deletes=True)


@pytest.fixture
def users(tmp_path: Path) -> TableOptions:
    return read_options({**MERGED, "path": str(tmp_path / "users")})


def row(user: str | None, ts: int | None, seq: int | None, word: str | None = None, *, deleted: bool = False):
    return {"user": user, "ts": ts, "seq": seq, "word": word, DELETED: deleted}


def send(options: TableOptions, *rows: dict, rule=BY_TIME, batch: WriterBatch | None = None) -> bool:
    return merge(options, pa.Table.from_pylist(list(rows), pa.schema(KINDS)), rule, batch=batch)


def words_in(options: TableOptions) -> dict[str | None, str | None]:
    found = pa.table(delta.open_table(options.path).to_pyarrow_table()).to_pylist()
    assert len({each["user"] for each in found}) == len(found), "a key has one row"
    return {each["user"]: each["word"] for each in found}


def test_an_older_row_of_a_later_batch_replaces_nothing(users):
    send(users, row("ann", 100, 0, "new"), row("bob", 1, 0, "old"))
    send(users, row("ann", 50, 9, "old"), row("bob", 2, 0, "new"))
    assert words_in(users) == {"ann": "new", "bob": "new"}


@pytest.mark.parametrize("order", list(itertools.permutations([(None, 5), (1, None), (1, 7), (2, 1)])))
def test_in_whatever_order_rows_come_the_last_of_them_by_all_columns_stays(users, order):
    for ts, seq in order:
        send(users, row("ann", ts, seq, f"{ts} {seq}"))
    assert words_in(users) == {"ann": "2 1"}


def test_of_equals_the_one_that_comes_later_stays(users):
    send(users, row("ann", 1, 1, "first"))
    send(users, row("ann", 1, 1, "second"))
    assert words_in(users) == {"ann": "second"}


def test_a_deletion_takes_its_key_along_unless_it_is_older(users):
    send(users, row("ann", 5, 0, "a"), row("bob", 5, 0, "b"))
    send(users, row("ann", 4, 0, deleted=True), row("bob", 6, 0, deleted=True), row("eve", 6, 0, deleted=True))
    assert words_in(users) == {"ann": "a"}


def test_no_key_is_a_key_like_any_other(users):
    send(users, row(None, 1, 0, "one"), row("ann", 1, 0, "a"))
    send(users, row(None, 2, 0, "two"))
    send(users, row(None, 3, 0, deleted=True), row("ann", 3, 0, "b"))
    assert words_in(users) == {"ann": "b"}


def test_a_batch_that_comes_again_changes_nothing(users):
    assert send(users, row("ann", 5, 0, "a"), batch=WriterBatch("q", 0))
    assert send(users, row("ann", 6, 0, deleted=True), batch=WriterBatch("q", 1))
    assert not send(users, row("ann", 5, 0, "a"), batch=WriterBatch("q", 0))
    assert words_in(users) == {}


def test_what_merges_replaced_goes_after_a_while(users):
    """A row of one key that changes with every batch: the table's folder must not grow for ever."""
    for number in range(200):
        send(users, row("ann", number, 0, "x"), batch=WriterBatch("q", number))
        for each in Path(users.path).glob("*.parquet"):
            os.utime(each, (1, 1))
        if number % 20 == 19:
            age_removals(users)
        tidy_sometimes(users, number)
    assert words_in(users) == {"ann": "x"}
    assert len(list(Path(users.path).glob("*.parquet"))) < 100


def test_what_a_table_has_seen_of_a_partition_never_becomes_less(users):
    """Of two partitions one may be read again (a second query on the table): what it has seen of it stays seen."""
    one, other = Origin("t", "id", 0), Origin("t", "id", 1)
    rows = pa.table({"user": ["ann"], "ts": [1]})
    rule = ordered(("user",), ("ts",), deletes=False)
    merge(users, rows, rule, ranges=[SourceRange(one, 0, 100)])
    merge(users, rows, rule, ranges=[SourceRange(one, 0, 50), SourceRange(other, 0, 5)])
    opened = delta.open_table(users.location)
    assert (delta.next_offset(opened, one), delta.next_offset(opened, other)) == (100, 5)


def test_a_batch_whose_number_is_known_is_merged_if_it_has_messages_that_are_not(users):
    """The machine stopped, and its checkpoint lost the batch that the table has."""
    here = Origin("t", "id", 0)
    rule, batch = ordered(("user",), ("ts",), deletes=False), WriterBatch("query", 7)
    assert merge(users, pa.table({"user": ["ann"], "ts": [1]}), rule, batch=batch, ranges=[SourceRange(here, 0, 10)])
    again = pa.table({"user": ["ann"], "ts": [2]})
    assert not merge(users, again, rule, batch=batch, ranges=[SourceRange(here, 0, 10)])
    assert merge(users, again, rule, batch=batch, ranges=[SourceRange(here, 0, 20)])
    assert not merge(users, again, rule, batch=batch)


def test_a_key_that_another_query_deleted_meanwhile_does_not_come_back(users):
    """Two queries keep one table: while one looks for what the table has not seen, the other goes on."""
    here = Origin("t", "id", 0)
    log = [row("ann", 1, 0, "a"), row("ann", 2, 0, deleted=True), row("eve", 3, 0, "e")]

    def play(query: str, first: int, end: int, meanwhile: Callable[[], object] = lambda: None) -> bool:
        def rows_after(seen: Mapping[Origin, int]) -> pa.Table:
            newest = {each["user"]: each for each in log[max(first, seen.get(here, 0)) : end]}
            if not looked:
                looked.append(meanwhile())
            return pa.Table.from_pylist(list(newest.values()), pa.schema(KINDS))

        looked: list[object] = []
        ranges, batch = [SourceRange(here, first, end)], WriterBatch(query, first)
        return merge_unseen(users, rows_after, BY_TIME, batch=batch, ranges=ranges)

    assert not play("one", 0, 1, lambda: play("other", 0, 1) and play("other", 1, 2))
    assert words_in(users) == {}
    assert play("one", 1, 3)
    assert words_in(users) == {"eve": "e"}


def age_removals(options: TableOptions) -> None:
    """As if the log had been written hours ago: vacuum goes by the time that a removal says."""
    for each in Path(options.path, "_delta_log").glob("*.json"):
        text = each.read_text()
        each.write_text(AGE.sub('"deletionTimestamp":1', text))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"key": "user"}, "key names the column user, and the rows have name, ts"),
        ({"key": "name", "options": {"orderBy": "ts, n"}}, "orderBy names the column n, and"),
    ],
)
def test_columns_that_are_not_there_are_refused_before_a_query_starts(given, words):
    with pytest.raises(LakeError, match=words):
        check_merge(table("t", mode="merge", **given), ["name", "ts"])


def test_a_column_that_a_merge_needs_for_itself_is_refused_and_not_dropped():
    for name in ("__rank", "__Deleted"):
        with pytest.raises(LakeError, match=f"the name {name.lower()} for itself"):
            check_merge(table("t", mode="merge", key="name"), ["name", name])
    check_merge(table("t", mode="merge", key="name"), ["name", "_rank"])


@pytest.mark.parametrize("later", [{"a": 9}, {"b": "z"}, {"b": "z", "a": 9}])
def test_a_struct_with_fewer_fields_than_the_table_knows_is_merged_as_it_is_appended(tmp_path, later):
    options, rule = read_options({"path": str(tmp_path / "t")}), ordered(("k",), ("n",), deletes=False)
    merge(options, pa.Table.from_pylist([{"k": 1, "n": 1, "s": {"a": 1, "b": "x"}}]), rule)

    merge(options, pa.Table.from_pylist([{"k": k, "n": 2, "s": later} for k in (1, 2)]), rule)

    rows = pa.table(delta.open_table(options.path).to_pyarrow_table()).sort_by("k").to_pylist()
    assert [each["s"] for each in rows] == [{"a": None, "b": None, **later}] * 2


def test_options_of_a_table_may_be_numbers_and_truth_values():
    options = table("t", mode="merge", key="k", options={"orderBy": "n", "compactEvery": 5, "sync": False}).options
    assert options == {"orderBy": "n", "compactEvery": "5", "sync": "false"}
