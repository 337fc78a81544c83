"""Tables in an object store: what works in a folder works there, without a jar and without a rename."""

import shutil

import pytest

from clarion.pipeline import archive, latest, replay, table
from clarion.pipeline.definition import BATCH
from clarion.pipeline.lake import compact, read_table, vacuum, write_table
from clarion.pipeline.lake.delta import open_table
from clarion.pipeline.lake.errors import LakeError
from clarion.pipeline.lake.location import locate
from clarion.pipeline.lake.options import TableOptions


@pytest.fixture
def bucket(s3, monkeypatch: pytest.MonkeyPatch) -> str:
    """The usual variables say where the store is; Spark was started before and does not know them."""
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    return s3.bucket()


def places(rows) -> list[tuple[int, int]]:
    return sorted((row.partition, row.offset) for row in rows.select("partition", "offset").collect())


# In every run: archive and replay in a folder, history, look-ups and `latest` in the store. Here nine jobs of Spark one
# after the other, which a busy machine does not do within the usual five minutes.
@pytest.mark.campaign
@pytest.mark.timeout(1800)
def test_an_archive_its_topics_past_and_its_replay(house, bucket: str, s3, unique: str) -> None:
    lake = f"{bucket}/lake/events"
    house.make_topic(unique)
    house.send(unique, [b"early"] * 20)
    archived = archive(unique, lake, name=unique, compact_every=1)
    house.run(archived)
    shutil.rmtree(house.state)  # a lost checkpoint: the table knows
    house.send(unique, [b"late"] * 10)
    house.run(archived)
    everything = [(partition, offset) for partition in (0, 1) for offset in range(15)]
    assert places(read_table(house.spark, lake)) == everything
    compact(lake, files_min=2)
    vacuum(lake)
    assert len(open_table(lake).file_uris()) == 1
    assert places(read_table(house.spark, lake)) == everything

    house.send(unique, [b"live"] * 2)
    reader = house.spark.read.format("clarion").option("bootstrap.servers", house.bootstrap)
    both = reader.options(subscribe=unique, history=lake, **dict(s3.options)).load()
    assert places(both) == [(partition, offset) for partition in (0, 1) for offset in range(16)]

    house.run(replay(lake, f"{unique}-again", keep_partitions=True, partitions=2), BATCH)
    assert len(house.read(f"{unique}-again", 30)) == 30


def test_the_latest_value_per_key(house, bucket: str, unique: str) -> None:
    lake = f"{bucket}/latest"
    house.make_topic(unique)
    house.send(unique, [b"%d" % n for n in range(40)])
    house.run(latest(unique, lake, name=unique))
    house.send(unique, [None] * 5 + [b"again"], key=lambda n: b"key-%d" % n, partition=lambda n: n % 2)
    house.run(latest(unique, lake, name=unique))
    found = {bytes(row.key): bytes(row.value) for row in read_table(house.spark, lake).collect()}
    assert found == {b"key-5": b"again", **{b"key-%d" % n: b"%d" % (30 + n) for n in range(6, 10)}}


def test_a_table_of_all_kinds_of_columns_is_read_as_it_was_written(spark, bucket: str) -> None:
    rows = spark.sql(
        "select id, cast(id % 3 as int) as part, date'2026-11-01' + cast(id % 2 as int) as day, id % 2 = 0 as even, "
        "if(id % 4 = 0, null, array(named_struct('k', 'a', 'v', cast('b' as binary)))) as headers, "
        "map('m', id) as pairs, timestamp'2026-11-01 12:00:00' as moment, struct(id as n) as inner from range(20)"
    )
    target = table(f"{bucket}/t", partition_by=["day", "even"])
    write_table(rows, target)
    assert sorted(read_table(spark, target).collect(), key=lambda row: row.id) == sorted(
        rows.collect(), key=lambda row: row.id
    )
    assert read_table(spark, target, version=0).count() == 0


def test_a_store_that_says_no_is_told_in_one_line(bucket: str, s3, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LakeError, match="there is no Delta table"):
        open_table(f"{bucket}/nowhere")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(LakeError, match=r"s3://\S+: .*127\.0\.0\.1:9") as told:
        open_table(f"{bucket}/t")
    assert "\n" not in str(told.value)
    assert "\x1b" not in str(told.value)
    for where, words in (("ftp://host/t", "a folder or at s3://, gs://, abfss://"), ("s3://b", "a name behind the")):
        with pytest.raises(LakeError, match=words):
            locate(where)


def test_every_scheme_is_known_to_both_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "c2VjcmV0")
    azure = locate("abfs://lake@house.dfs.core.windows.net/deep/t/")
    assert azure.uri == "abfss://lake@house.dfs.core.windows.net/deep/t"
    assert (azure._key("a/b"), azure._store.type_name) == ("lake/deep/t/a/b", "abfs")
    google = locate("gs://lake/deep/t", {"google_service_account": "x.json", "aws_region": "not asked"})
    assert (google._key("a"), google.options) == ("lake/deep/t/a", (("google_service_account", "x.json"),))
    assert locate("s3a://lake/t").uri == "s3://lake/t"


def test_keys_are_in_no_error_and_no_log() -> None:
    place = locate("s3://lake/t", {"aws_secret_access_key": "hidden"})
    assert dict(place.options)["aws_secret_access_key"] == "hidden"
    assert "hidden" not in f"{place} {place!r} {TableOptions(path=place.uri, store=place.options)!r}"
