"""A table's log read with pyarrow says what delta-rs says of it."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import IO

import pyarrow as pa
import pytest

from clarion.pipeline.lake import delta, snapshots
from clarion.pipeline.lake.commits import WriterBatch
from clarion.pipeline.lake.compaction import compact
from clarion.pipeline.lake.errors import LakeError
from clarion.pipeline.lake.history import Span, history, may_hold, read_in_order
from clarion.pipeline.lake.location import Location
from clarion.pipeline.lake.options import TableOptions
from clarion.pipeline.lake.ranges import Origin, transaction_name
from clarion.pipeline.lake.snapshots import snapshot
from tests.pipeline.lake.rows import SOURCE, messages, write

HERE = Origin("events", "id-1", 0)


@pytest.fixture
def table(tmp_path: Path) -> TableOptions:
    return TableOptions(path=str(tmp_path / "a table"), partition_by=("date",), source_columns=SOURCE)


def fill(table: TableOptions, batches: range) -> None:
    for number in batches:
        write(table, messages(number * 10, 10, day=1 + number % 3), batch=WriterBatch("query", number))


def check(table: TableOptions) -> None:
    opened, found = delta.open_table(table.location), snapshot(table.location)
    assert found.version == opened.version()
    assert set(found.files) == delta.paths_of(opened)
    assert found.transactions[transaction_name("next", HERE)] == delta.next_offset(opened, HERE)
    assert found.transactions["query"] == opened.transaction_version("query")


def forget(table: TableOptions) -> None:
    snapshots._known.clear()


def remember(table: TableOptions) -> None:
    snapshot(table.location)


@pytest.mark.parametrize("before", [forget, remember])
def test_commits_checkpoints_and_compactions(table: TableOptions, before: Callable[[TableOptions], None]) -> None:
    fill(table, range(3))
    before(table)
    check(table)
    fill(table, range(3, 12))
    compact(table.path, files_min=2)
    before(table)
    check(table)
    delta.open_table(table.path).create_checkpoint()
    for each in Path(table.path, "_delta_log").glob("*.json"):
        if int(each.stem) < delta.open_table(table.path).version():
            each.unlink()  # as Delta does with what is older than the log's retention
    fill(table, range(12, 14))
    check(table)
    before(table)
    fill(table, range(14, 15))
    check(table)
    now = snapshot(table.location)
    assert len(snapshot(table.location, now.version - 1).files) == len(now.files) - 1


def test_a_table_that_was_made_again_is_not_taken_for_the_one_before(table: TableOptions) -> None:
    fill(table, range(2))
    check(table)
    shutil.rmtree(table.path)
    fill(table, range(5))
    check(table)
    shutil.rmtree(table.path)
    with pytest.raises(LakeError, match="there is no Delta table"):
        snapshot(table.location)


def test_a_log_with_a_hole_is_refused(table: TableOptions) -> None:
    fill(table, range(4))
    Path(table.path, "_delta_log", f"{2:020}.json").unlink()
    with pytest.raises(LakeError, match="its log has a hole"):
        snapshot(table.location)


def test_the_past_is_read_in_its_order_from_files_that_overlap(table: TableOptions) -> None:
    for number in range(12):
        rows = [messages(number * 10 + 5 * half, 5, day=1 + (number + half) % 3) for half in (0, 1)]
        write(table, *rows, messages(number * 1000, 3, partition=1), batch=WriterBatch("query", number))
        if number in (5, 9):
            compact(table.path, files_min=2)
    past = history(table.location, [HERE])
    span = Span(33, 97)
    files = [each for each in past.files if may_hold(each, HERE, span)]
    assert len(files) < len(past.files)
    schema = messages(0, 1).schema.remove(messages(0, 1).schema.get_field_index("date"))

    found = [
        number
        for batch in read_in_order(table.location, files, HERE, span, schema)
        for number in batch["offset"].to_pylist()
    ]

    assert found == list(range(33, 97))


def test_rows_of_a_past_that_wait_for_earlier_ones_are_left_alone(table: TableOptions, monkeypatch) -> None:
    """Two partitions in every file, one of them far ahead: by its offsets no file is known to be the next."""
    for number in range(12):
        ahead = messages(1_000 + number * 5, 5, partition=1)
        write(table, messages(number * 5, 5), ahead, batch=WriterBatch("query", number))
    touched = 0

    def watched(tables: list[pa.Table], real=pa.concat_tables, **options: str) -> pa.Table:
        nonlocal touched
        touched += sum(each.num_rows for each in tables)
        return real(tables, **options)

    files = history(table.location, [HERE]).files
    schema = messages(0, 1).schema.remove(messages(0, 1).schema.get_field_index("date"))
    monkeypatch.setattr(pa, "concat_tables", watched)
    there = HERE._replace(partition=1)
    found = [each["offset"] for each in read_in_order(table.location, files, there, Span(1_000, 1_060), schema)]

    assert [offset for each in found for offset in each.to_pylist()] == list(range(1_000, 1_060))
    assert touched == 60


@pytest.mark.parametrize("has_firsts", [False, True])
def test_a_past_of_many_small_files_has_few_of_them_open_at_once(table: TableOptions, monkeypatch, has_firsts) -> None:
    """`has_firsts`: in each there is the first message of another partition, so that all begin with the same offset."""
    for number in range(12):
        more = [messages(0, 1, partition=1 + number)] if has_firsts else []
        write(table, messages(number * 5, 5), *more, batch=WriterBatch("query", number))
    opened: list[IO[bytes]] = []
    most = 0

    def watched(location: Location, path: str, real=Location.open) -> IO[bytes]:
        nonlocal most
        opened.append(real(location, path))
        most = max(most, sum(not each.closed for each in opened))
        return opened[-1]

    files = history(table.location, [HERE]).files
    monkeypatch.setattr(Location, "open", watched)
    schema = messages(0, 1).schema.remove(messages(0, 1).schema.get_field_index("date"))
    found = [each["offset"].to_pylist() for each in read_in_order(table.location, files, HERE, Span(0, 60), schema)]

    assert [offset for each in found for offset in each] == list(range(60))
    assert (len(opened), all(each.closed for each in opened)) == (12, True)
    assert most <= 2, "a stream's files follow each other, and there may be more than a process may open"
