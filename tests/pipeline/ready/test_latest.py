"""The last value per key, as a table."""

import shutil

import pytest

from clarion.pipeline import latest
from clarion.pipeline.lake import read_table


def test_a_table_keeps_the_last_value_per_key(house, unique: str) -> None:
    house.make_topic(unique)

    def send(*pairs: tuple[str | None, object]) -> None:
        house.send(
            unique,
            [value for _, value in pairs],
            key=lambda n: pairs[n][0] and pairs[n][0].encode(),
            partition=lambda n: len(pairs[n][0] or "") % 2,
        )

    prices = latest(unique, house.lake("prices"), json="amount double, note string")
    send(("tea", {"amount": 1}), ("milk", {"amount": 2}), ("tea", {"amount": 3}), (None, {"amount": 9}))
    house.run(prices)
    send(("milk", None), ("salt", {"amount": 4}), ("tea", b"no json"), ("gone", {"amount": 1}), ("gone", None))
    house.run(prices)

    def rows() -> dict:
        found = read_table(house.spark, house.lake("prices")).collect()
        assert len({bytes(row._key) for row in found}) == len(found)
        return {bytes(row._key).decode(): (row.amount, row._unparsed and bytes(row._unparsed)) for row in found}

    assert rows() == {"tea": (None, b"no json"), "salt": (4.0, None)}

    shutil.rmtree(house.state)  # the old messages must not come back over the newer state
    send(("tea", {"amount": 5}))
    house.run(prices)
    assert rows() == {"tea": (5.0, None), "salt": (4.0, None)}


@pytest.mark.campaign
def test_raw_values_and_a_replayed_batch(house, unique: str) -> None:
    house.make_topic(unique, 1)
    house.send(unique, [b"1", b"2", b"3"], key=lambda n: b"k", partition=lambda n: 0)
    states = latest(unique, house.lake("states"))
    house.run(states)
    max((house.checkpoint(states) / "commits").glob("[0-9]*")).unlink()
    house.run(states)

    (row,) = read_table(house.spark, house.lake("states")).collect()
    assert (bytes(row.key), bytes(row.value), row.offset, row.topic) == (b"k", b"3", 2, unique)
