"""A batch is in a table once and whole, whatever is replayed, raced or killed."""

import json
import os
import threading
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.fs as fs
import pytest

from clarion.pipeline.lake import delta
from clarion.pipeline.lake.commits import WriterBatch
from clarion.pipeline.lake.compaction import compact, plan_rewrites, tidy_sometimes, vacuum
from clarion.pipeline.lake.errors import LakeError
from clarion.pipeline.lake.options import TableOptions
from clarion.pipeline.lake.ranges import Origin
from tests.pipeline.lake.rows import SOURCE, messages, offsets_in, read, staged, write
from tests.pipeline.lake.stores import Store

HERE = Origin("events", "id-1", 0)


@pytest.fixture(params=["folder", "s3"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> TableOptions:
    if request.param == "folder":
        return TableOptions(path=str(tmp_path / "lake" / "events"), partition_by=("date",), source_columns=SOURCE)
    store: Store = request.getfixturevalue("s3")
    return TableOptions(
        path=f"{store.bucket()}/events", partition_by=("date",), source_columns=SOURCE, store=store.options
    )


@pytest.fixture
def folder(tmp_path: Path) -> TableOptions:
    return TableOptions(path=str(tmp_path / "lake" / "events"), partition_by=("date",), source_columns=SOURCE)


def everything_in(table: TableOptions) -> set[str]:
    place = table.location
    found = place._store.get_file_info(fs.FileSelector(place._key("").rstrip("/"), recursive=True))
    return {each.path.removeprefix(place._key("")) for each in found if each.type == fs.FileType.File}


def files_in(table: TableOptions) -> set[str]:
    return {each for each in everything_in(table) if each.endswith(".parquet") and not each.startswith("_delta_log")}


def test_a_batch_that_is_played_again_is_not_written_again(table: TableOptions) -> None:
    assert write(table, messages(0, 100), batch=WriterBatch("query", 0))
    before = files_in(table)

    assert not write(table, messages(0, 100), batch=WriterBatch("query", 0))

    assert offsets_in(table) == list(range(100))
    assert files_in(table) == before  # the replayed files are gone
    assert write(table, messages(100, 10), batch=WriterBatch("query", 1))
    assert offsets_in(table) == list(range(110))


def test_rows_are_known_by_their_origin_when_the_checkpoint_is_lost(table: TableOptions) -> None:
    write(table, messages(0, 100), batch=WriterBatch("query", 0))

    assert not write(table, messages(0, 100), batch=WriterBatch("another query", 0))
    with pytest.raises(LakeError, match="up to offset 100, and this batch begins at 50"):
        write(table, messages(50, 100), batch=WriterBatch("another query", 1))
    assert write(table, messages(100, 10), batch=WriterBatch("another query", 2))

    assert offsets_in(table) == list(range(110))


def test_a_batch_whose_number_is_known_is_judged_by_its_messages(table: TableOptions) -> None:
    """A machine that stopped lost the end of the checkpoint, which Spark does not flush: numbers come again, with other
    messages. What is all there is skipped, what is new is written, what is both, or of unknown origin, is refused."""
    write(table, messages(0, 100), batch=WriterBatch("query", 0))
    write(table, messages(100, 50), batch=WriterBatch("query", 1))
    write(table, messages(150, 50), batch=WriterBatch("query", 2))

    assert not write(table, messages(100, 100), batch=WriterBatch("query", 1))
    with pytest.raises(LakeError, match=r"up to offset 200, and this batch has 100 to 399\. The checkpoint is older"):
        write(table, messages(100, 300), batch=WriterBatch("query", 1))
    with pytest.raises(LakeError, match=r"events \[1\] the table holds nothing, and this batch has 0 to 9"):
        write(table, messages(0, 10, partition=1), batch=WriterBatch("query", 1))
    assert write(table, messages(200, 10), batch=WriterBatch("query", 2))
    assert write(table, messages(210, 10), batch=WriterBatch("query", 3))

    assert offsets_in(table) == list(range(220))


def test_rows_from_before_the_first_are_not_taken_for_known(table: TableOptions) -> None:
    """A stream that began at the latest, and is begun anew at the earliest: the table never held what comes then."""
    write(table, messages(100, 50), batch=WriterBatch("query", 0))
    for first, count in ((0, 50), (50, 70)):
        with pytest.raises(LakeError, match=f"from offset 100 to 150, and this batch begins before, at {first}:"):
            write(table, messages(first, count), batch=WriterBatch("another query", 0))
    assert not write(table, messages(120, 10), batch=WriterBatch("another query", 1))
    assert offsets_in(table) == list(range(100, 150))


def test_rows_between_those_of_another_query_are_not_taken_for_known(table: TableOptions) -> None:
    """One archive from the earliest offset, one from the latest: what the table holds has a hole, and a batch in it."""
    assert write(table, messages(0, 10), batch=WriterBatch("from-earliest", 0))
    assert write(table, messages(50, 10), batch=WriterBatch("from-latest", 0))
    with pytest.raises(LakeError, match=r"from offset 0 to 60, but not 10 to 19, .* another query"):
        write(table, messages(10, 10), batch=WriterBatch("from-earliest", 1))
    assert not write(table, messages(50, 10), batch=WriterBatch("without-its-checkpoint", 0))
    assert offsets_in(table) == [*range(10), *range(50, 60)]


def test_a_batch_that_spans_such_a_hole_is_not_taken_for_known(table: TableOptions) -> None:
    write(table, messages(0, 10), batch=WriterBatch("one", 0))
    write(table, messages(50, 10), batch=WriterBatch("two", 0))
    with pytest.raises(LakeError, match="from offset 0 to 60, but not 0 to 59"):
        write(table, messages(0, 60), batch=WriterBatch("three", 0))
    assert not write(table, messages(2, 5), batch=WriterBatch("three", 0)), "compaction may have left fewer"


def test_rows_in_such_a_hole_are_not_taken_for_known_by_the_number_of_their_batch(table: TableOptions) -> None:
    """The older archive's machine stopped, and the number of its last batch comes again, with the messages after it."""
    write(table, messages(0, 10), batch=WriterBatch("one", 0))
    write(table, messages(10, 10), batch=WriterBatch("one", 1))
    write(table, messages(50, 10), batch=WriterBatch("two", 0))
    for first, count in ((20, 10), (10, 50)):
        with pytest.raises(LakeError, match=f"from offset 0 to 60, but not {first} to {first + count - 1}"):
            write(table, messages(first, count), batch=WriterBatch("one", 1))
    assert not write(table, messages(10, 10), batch=WriterBatch("one", 1))


def test_a_table_that_was_restored_is_not_taken_for_complete(table: TableOptions) -> None:
    """Older copies of the table and of the checkpoint: the table's log still says what it held once."""
    for number in range(4):
        write(table, messages(number * 10, 10), batch=WriterBatch("query", number))
    opened = delta.open_table(table.location)
    opened.restore(opened.version() - 2)
    assert not write(table, messages(0, 10), batch=WriterBatch("query", 0))
    with pytest.raises(LakeError, match=r"but not 20 to 29, which this batch has: .* deleted from the table"):
        write(table, messages(20, 10), batch=WriterBatch("query", 2))


def test_the_partition_that_a_table_does_not_know_is_the_one_that_is_named(table: TableOptions) -> None:
    write(table, messages(0, 10), batch=WriterBatch("one", 0))
    with pytest.raises(LakeError, match=r"of events \[1\] the table holds nothing, and this batch has 0 to 4"):
        write(table, messages(10, 10), messages(0, 5, partition=1), batch=WriterBatch("one", 0))


@pytest.mark.parametrize("has_bound", [True, False])
def test_rows_of_a_topic_with_a_long_name_are_known_by_their_origin(folder: TableOptions, has_bound: bool) -> None:
    """Its name has no upper bound in the statistics of files that earlier versions wrote."""
    rows = messages(0, 10)
    where = rows.schema.get_field_index("topic")
    rows = rows.set_column(where, rows.schema.field(where), pa.array(["long" * 50] * 10))
    work = staged(folder, rows, batch=WriterBatch("query", 0))
    (file,) = work.files
    known = json.loads(file.statistics)
    if not has_bound:
        del known["maxValues"]["topic"]
    delta.commit(folder, replace(work, files=[replace(file, statistics=json.dumps(known))]))
    assert not write(folder, rows, batch=WriterBatch("query", 0))
    assert not write(folder, rows.slice(3, 4), batch=WriterBatch("another query", 0))


@pytest.mark.parametrize("column", ["topic", "partition", "offset"])
def test_rows_that_do_not_say_where_they_come_from_are_refused_and_not_dropped(folder: TableOptions, column) -> None:
    """Of an outer join, say: between known messages they would be taken for known, too."""
    rows = messages(0, 3)
    where = rows.schema.get_field_index(column)
    field = rows.schema.field(where)
    write(folder, rows, batch=WriterBatch("query", 0))
    nowhere = rows.set_column(where, field, pa.array([*rows[column].to_pylist()[:2], None], field.type))
    with pytest.raises(LakeError, match=f"rows without a value in the column {column} could not be told from"):
        write(folder, nowhere, batch=WriterBatch("query", 1))
    names = [name for name in rows.schema.names if name != column]
    with pytest.raises(LakeError, match=f"sourceColumns names the column {column}, and the rows have value, "):
        write(folder, rows.select(names), batch=WriterBatch("query", 1))


def test_a_topic_made_anew_is_another_origin(table: TableOptions) -> None:
    write(table, messages(0, 10), batch=WriterBatch("query", 0))

    assert write(table, messages(0, 5, topic_id="id-2"), batch=WriterBatch("query", 1))

    assert offsets_in(table) == sorted([*range(10), *range(5)])


def test_a_table_says_from_where_to_where_it_holds_a_partition(table: TableOptions) -> None:
    write(table, messages(7, 10), messages(40, 2, partition=1), batch=WriterBatch("query", 0))
    write(table, messages(17, 3), batch=WriterBatch("query", 1))

    opened = delta.open_table(table.location)
    assert (delta.first_offset(opened, HERE), delta.next_offset(opened, HERE)) == (7, 20)
    assert delta.next_offset(opened, Origin("events", "id-1", 1)) == 42
    assert delta.next_offset(opened, Origin("events", "id-2", 0)) is None


def test_a_file_that_the_driver_does_not_see_is_not_committed(table: TableOptions) -> None:
    """The table's folder is not shared, and the task wrote on a disk of its own."""
    write(table, messages(0, 10), batch=WriterBatch("query", 0))
    work = staged(table, messages(10, 10), batch=WriterBatch("query", 1))
    table.location.remove([work.files[0].path])

    with pytest.raises(LakeError, match=r"it is not here; nothing was committed.*every worker share"):
        delta.commit(table, work)

    assert offsets_in(table) == list(range(10))
    assert write(table, messages(10, 10), batch=WriterBatch("query", 1))  # the batch is not taken for done


def test_a_file_that_was_cut_off_is_not_committed(table: TableOptions) -> None:
    work = staged(table, messages(0, 10), batch=WriterBatch("query", 0))
    with table.location.create(work.files[0].path) as file:
        file.write(b"x" * 100)

    with pytest.raises(LakeError, match=f"a task wrote {work.files[0].size} bytes, and 100 are here"):
        delta.commit(table, work)


def test_an_abandoned_write_leaves_nothing(table: TableOptions) -> None:
    write(table, messages(0, 10), batch=WriterBatch("query", 0))
    before = files_in(table)
    work = staged(table, messages(10, 10), batch=WriterBatch("query", 1))
    assert files_in(table) > before

    delta.remove_uncommitted(table.location, work.files)

    assert files_in(table) == before


def test_an_abort_after_the_commit_takes_nothing_back(table: TableOptions) -> None:
    """Spark aborts when a commit raised, even if it had succeeded before it did."""
    work = staged(table, messages(0, 10), batch=WriterBatch("query", 0))
    delta.commit(table, work)

    delta.remove_uncommitted(table.location, work.files)

    assert offsets_in(table) == list(range(10))


def test_an_empty_batch_makes_no_version(table: TableOptions) -> None:
    write(table, messages(0, 10))
    before = everything_in(table)

    assert not write(table, messages(0, 0), batch=WriterBatch("query", 5))

    assert everything_in(table) == before


def test_overwriting_replaces_all_rows_in_one_step(table: TableOptions) -> None:
    write(table, messages(0, 10))

    assert write(table, messages(500, 3, topic_id="other"), overwrite=True)

    assert offsets_in(table) == [500, 501, 502]
    assert write(table, messages(501, 1, topic_id="other"), overwrite=True), "though the table held it before"
    assert offsets_in(table) == [501]
    assert write(table, messages(502, 1, topic_id="other"))
    assert offsets_in(table) == [501, 502]


def test_a_new_column_is_empty_in_older_rows(table: TableOptions) -> None:
    write(table, messages(0, 2))
    wider = messages(2, 2).append_column("level", pa.array(["INFO", "WARN"]))

    write(table, wider)
    write(table, messages(4, 1))

    found = read(table)
    levels = dict(zip(found["offset"].to_pylist(), found["level"].to_pylist(), strict=True))
    assert levels == {0: None, 1: None, 2: "INFO", 3: "WARN", 4: None}


def test_a_column_of_another_type_is_refused_before_a_row_is_written(table: TableOptions) -> None:
    write(table, messages(0, 2))
    before = files_in(table)
    batch = messages(2, 2)
    other = batch.set_column(batch.schema.get_field_index("offset"), "offset", pa.array(["2", "3"]))

    with pytest.raises(LakeError, match="column offset is int64 in the table and string"):
        write(table, other)

    assert files_in(table) == before


def test_other_partition_columns_than_the_tables_are_refused(table: TableOptions) -> None:
    write(table, messages(0, 2))
    other = replace(table, partition_by=("partition",))

    with pytest.raises(LakeError, match=r"partitioned by \(date\)"):
        write(other, messages(2, 2))


def test_writers_beside_each_other_lose_nothing_and_double_nothing(folder: TableOptions) -> None:
    check_writers_beside_each_other(folder)


@pytest.mark.campaign  # moto answers one request at a time: a minute of both cores
@pytest.mark.parametrize("table", ["s3"], indirect=True)
def test_writers_beside_each_other_in_an_object_store_lose_nothing_and_double_nothing(table: TableOptions) -> None:
    check_writers_beside_each_other(table)


def check_writers_beside_each_other(table: TableOptions) -> None:
    """Four writers, and one of them played twice at the same time."""
    problems: list[BaseException] = []

    def stream(partition: int) -> None:
        try:
            for number in range(5):
                rows = messages(number * 10, 10, partition=partition)
                write(table, rows, batch=WriterBatch(f"query-{partition}", number))
        except BaseException as problem:
            problems.append(problem)

    threads = [threading.Thread(target=stream, args=(each,)) for each in (0, 1, 2, 3, 3)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()

    assert not problems
    assert offsets_in(table) == sorted([*range(50)] * 4)


def test_partition_values_with_odd_letters_are_read_back(tmp_path: Path) -> None:
    table = TableOptions(path=str(tmp_path / "odd table"), partition_by=("p",))
    values = ["a b/c%", "x=y", "ü", None, "plain"]

    work = staged(table, pa.record_batch({"p": pa.array(values), "offset": pa.array(range(5), pa.int64())}))
    delta.commit(table, work)
    delta.remove_uncommitted(table.location, work.files)  # they are known by the same names

    found = read(table)
    assert dict(zip(found["offset"].to_pylist(), found["p"].to_pylist(), strict=True)) == dict(enumerate(values))


def test_small_files_become_large_ones_and_no_row_changes(table: TableOptions) -> None:
    for number in range(10):
        write(table, messages(number * 10, 5), messages(number * 10 + 5, 5, day=2), batch=WriterBatch("query", number))
    widened = messages(100, 1).append_column("level", pa.array(["INFO"]))
    write(table, widened, batch=WriterBatch("query", 10))

    report = compact(table.location)

    assert (report.files_before, report.files_after) == (21, 2)
    assert offsets_in(table) == list(range(101))
    assert not write(table, messages(0, 5), batch=WriterBatch("query", 3))  # what was remembered still is
    assert delta.next_offset(delta.open_table(table.location), HERE) == 101
    assert compact(table.location).files_after == 2


def test_compaction_beside_a_writer_disturbs_neither(table: TableOptions) -> None:
    for number in range(10):
        write(table, messages(number * 10, 10), batch=WriterBatch("query", number))
    late = staged(table, messages(100, 10), batch=WriterBatch("query", 10))  # planned before, committed after

    compact(table.location)
    assert delta.commit(table, late)

    assert offsets_in(table) == list(range(110))


def test_a_table_that_cannot_be_tidied_does_not_stop_its_stream(folder: TableOptions, caplog) -> None:
    """A file that somebody deleted: the batch is committed, and played again it would come to the same end."""
    options = replace(folder, compact_every=1, vacuum_hours=1)
    for number in range(10):
        write(options, messages(number * 10, 10), batch=WriterBatch("query", number))
    options.location.remove([min(files_in(options))])
    tidy_sometimes(options, 9)
    assert "was not tidied" in caplog.text


def test_a_partition_is_rewritten_tier_by_tier() -> None:
    here, there = (("date", "2026-11-01"),), (("date", "2026-11-02"),)
    mib = 1 << 20
    small = [(here, 1000)] * 20
    middling = [(here, 3 * mib)] * 7
    assert plan_rewrites([*small, *middling, (there, 1000)], 128 * mib) == [(here, mib // 2)]
    assert plan_rewrites([*small, *middling, (here, 2 * mib)], 128 * mib) == [(here, 8 * mib)]
    assert plan_rewrites([(here, 100 * mib)] * 3 + [(here, 200 * mib)] * 50, 128 * mib) == []


def test_vacuum_removes_what_a_dead_writer_left_and_nothing_young(folder: TableOptions) -> None:
    for number in range(10):
        write(folder, messages(number * 10, 10), batch=WriterBatch("query", number))
    compact(folder.location)
    orphan = staged(folder, messages(100, 10)).files[0].path
    young = staged(folder, messages(110, 10)).files[0].path
    os.utime(Path(folder.path, orphan), (1, 1))

    gone = vacuum(folder.location, retention_hours=2)

    assert [os.path.basename(each) for each in gone] == [os.path.basename(orphan)]
    assert young in files_in(folder)
    assert orphan not in files_in(folder)
    assert offsets_in(folder) == list(range(100))
    with pytest.raises(LakeError, match="at least 1 h"):
        vacuum(folder.location, retention_hours=0)


def test_a_table_that_needs_more_than_we_know_is_refused(table: TableOptions) -> None:
    from deltalake import TableFeatures

    write(table, messages(0, 2))
    opened = delta.open_table(table.location)
    opened.alter.add_feature(TableFeatures.ChangeDataFeed, allow_protocol_versions_increase=True)

    with pytest.raises(LakeError, match="needs writers that know changeDataFeed"):
        write(table, messages(2, 2))


def test_a_plain_folder_of_an_earlier_version_is_left_alone(folder: TableOptions) -> None:
    """A vacuum of the new table would take its files for leftovers."""
    Path(folder.path, "_clarion").mkdir(parents=True)
    Path(folder.path, "_clarion", "journal.json").write_text("{}")

    with pytest.raises(LakeError, match="a plain parquet table, as earlier versions made them"):
        write(folder, messages(0, 1))
