"""A walk over batches that ends early, while another begins: each keeps its own place."""

from __future__ import annotations

from collections.abc import Iterator

from clarion.log.batch_headers import iter_batch_headers
from clarion.wire.batch import BatchHeader
from clarion.wire.records import encode_batch

BATCH = bytes(encode_batch([(None, b"value", (), 1)]))
SIZE = 10 * len(BATCH)


class TellingFile:
    """What is called when it is dropped stands for other threads: they run while a file is closed."""

    path = "telling"

    def __init__(self, when_dropped: object = None) -> None:
        self.when_dropped = when_dropped

    def read(self, length: int, position: int) -> bytes:
        return (BATCH * 10)[position : position + length]

    def __del__(self) -> None:
        if callable(self.when_dropped):
            self.when_dropped()


def walk(file: TellingFile):  # type: ignore[no-untyped-def]
    return iter_batch_headers(file, 0, SIZE, SIZE)  # type: ignore[arg-type]


def test_a_walk_that_begins_while_an_abandoned_one_is_dropped_finds_every_batch() -> None:
    begun: list[tuple[Iterator[tuple[BatchHeader, int]], list[tuple[BatchHeader, int]]]] = []

    def begin_another() -> None:
        another = walk(TellingFile())
        found: list[tuple[BatchHeader, int]] = [next(another)]
        begun.append((another, found))

    for _ in range(3):
        abandoned = walk(TellingFile(begin_another))
        next(abandoned)
        del abandoned
    assert len(begun) == 3
    for another, found in begun:
        found.extend(another)
        assert [at for _, at in found] == [number * len(BATCH) for number in range(10)]
