"""A table that a stream joins: every micro-batch sees it as it is then."""

from pathlib import Path

import pytest

from clarion.pipeline import table
from clarion.pipeline.lake import read_table, write_table
from clarion.pipeline.lake.delta import open_table, paths_of


@pytest.mark.parametrize("kind", ["folder", "s3"])
def test_a_look_up_table_is_refreshed_by_every_batch(house, s3, monkeypatch, unique: str, kind: str) -> None:
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    names = table(house.lake("names") if kind == "folder" else f"{s3.bucket()}/names", mode="overwrite")

    def know(**found: str) -> None:
        """All files that the table had before are gone at once, as after a vacuum."""
        before = paths_of(open_table(names.location)) if names.missing(None) is None else ()
        rows = house.spark.createDataFrame(list(found.items()), "key string, name string")
        write_table(rows.coalesce(1), names)
        names.location.remove(before)

    know(a="Ann", b="Bob")
    house.make_topic(unique, 1)
    stream = house.spark.readStream.format("clarion").option("bootstrap.servers", house.bootstrap)
    messages = stream.option("subscribe", unique).option("startingOffsets", "earliest").load()
    keyed = messages.selectExpr("cast(key as string) as key", "cast(value as string) as value")
    joined = keyed.join(names.load(house.spark, None, streaming=True), "key", "left").select("value", "name")
    target = house.lake("joined")
    query = (
        joined.writeStream.format("clarion-lake")
        .option("checkpointLocation", str(Path(house.folder, "c")))
        .start(target)
    )
    try:
        house.send(unique, [b"1"], key=lambda n: b"a", partition=lambda n: 0)
        query.processAllAvailable()
        know(a="Anna", c="Cid")
        house.send(unique, [b"2", b"3"], key=lambda n: (b"a", b"c")[n], partition=lambda n: 0)
        query.processAllAvailable()
        know(b="Bert")
        house.send(unique, [b"4", b"5"], key=lambda n: (b"a", b"b")[n], partition=lambda n: 0)
        query.processAllAvailable()
    finally:
        query.stop()
    found = {row.value: row.name for row in read_table(house.spark, target).collect()}
    assert found == {"1": "Ann", "2": "Anna", "3": "Cid", "4": None, "5": "Bert"}
