"""Which rows fit which table."""

import pyarrow as pa
import pytest

from clarion.pipeline.lake.errors import LakeError
from clarion.pipeline.lake.options import read_options
from clarion.pipeline.lake.schema import check_partition_columns, fit

TABLE = pa.schema([("id", pa.int64()), ("name", pa.string()), ("place", pa.struct([("city", pa.string())]))])


def test_the_same_columns_fit_in_any_order_and_number() -> None:
    found = fit(TABLE, pa.schema([("name", pa.string()), ("id", pa.int64())]), may_add=False)

    assert found.written.names == ["name", "id"]
    assert found.added == ()


def test_a_new_column_is_added_and_a_new_field_of_a_struct_too() -> None:
    wider = pa.struct([("zip", pa.int32())])
    found = fit(TABLE, pa.schema([("id", pa.int64()), ("tags", pa.list_(pa.string())), ("place", wider)]), may_add=True)

    assert [each.name for each in found.added] == ["tags", "place"]
    assert found.added[1].type == pa.struct([("city", pa.string()), ("zip", pa.int32())])
    assert found.written.field("place").type == wider


def test_a_narrower_number_is_widened_on_the_way() -> None:
    assert fit(TABLE, pa.schema([("id", pa.int32())]), may_add=False).written.field("id").type == pa.int64()


@pytest.mark.parametrize(
    ("incoming", "words"),
    [
        (pa.schema([("id", pa.string())]), "column id is int64 in the table and string"),
        (pa.schema([("ID", pa.int64())]), "column ID: the table calls it id"),
        (pa.schema([("place", pa.struct([("city", pa.int32())]))]), "column place.city is string"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(incoming: pa.Schema, words: str) -> None:
    with pytest.raises(LakeError, match=words):
        fit(TABLE, incoming, may_add=True)


def test_nothing_is_added_where_that_is_switched_off() -> None:
    with pytest.raises(LakeError, match="no column more, and mergeSchema is off"):
        fit(TABLE, pa.schema([("more", pa.string())]), may_add=False)


@pytest.mark.parametrize(
    ("columns", "words"),
    [(["nowhere"], "no such column"), (["place"], "cannot be partitioned by place"), (["id", "name"], None)],
)
def test_only_what_can_name_a_folder_partitions_a_table(columns: list[str], words: str | None) -> None:
    if words is None:
        check_partition_columns(TABLE, columns)
    else:
        with pytest.raises(LakeError, match=words):
            check_partition_columns(TABLE, columns)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"path": "t", "partitonBy": "date"}, "no option partitonby"),
        ({}, "needs its folder"),
        ({"path": "t", "txnAppId": "me"}, "belong together"),
        ({"path": "t", "sourceColumns": "topic,offset"}, "four columns are wanted"),
        ({"path": "t", "targetFileBytes": "tiny"}, "targetFileBytes=tiny: a whole number"),
        ({"path": "t", "mergeSchema": "perhaps"}, "true or false"),
    ],
)
def test_a_wrong_option_is_refused_by_name(given: dict[str, str], words: str) -> None:
    with pytest.raises(LakeError, match=words):
        read_options(given)
