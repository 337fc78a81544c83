"""The pipeline's encoder, judged by the broker's codec and by its check at the door."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clarion.pipeline.kafka.encode import cut_batches, encode_records, messages, size_bounds
from clarion.wire.batch import check_produced_batch, read_header
from clarion.wire.records import check_deep, decode_batch, encode_batch
from tests.pipeline.kafka.messages import compression, few_messages, sealed, unhurried, write


@unhurried
@given(few_messages, compression, st.integers(200, 20_000))
def test_the_broker_reads_back_what_was_encoded(rows, code, batch_bytes_max):
    out = []
    for batch in write(rows, batch_bytes_max=batch_bytes_max, compression=code):
        header = check_produced_batch(memoryview(batch))
        check_deep(batch, header, keys_required=False)
        out += [(key, value, headers, stamp) for _, stamp, key, value, headers in decode_batch(batch)]
    assert out == rows


@unhurried
@given(few_messages)
def test_without_compression_the_bytes_are_the_broker_codecs_own(rows):
    (ours,) = write(rows, producer_id=9, producer_epoch=1, base_sequence=77)
    theirs = encode_batch(rows, producer_id=9, producer_epoch=1, base_sequence=77, leader_epoch=-1)
    assert ours == theirs


@unhurried
@given(few_messages, st.integers(200, 20_000))
def test_a_batch_is_never_larger_than_allowed_unless_it_is_one_record(rows, batch_bytes_max):
    for batch in write(rows, batch_bytes_max=batch_bytes_max):
        assert len(batch) <= batch_bytes_max or read_header(batch).record_count == 1


def test_batches_are_cut_at_every_group():
    sizes = np.full(10, 100)
    assert cut_batches(sizes, np.array([0, 4]), 361).tolist() == [0, 3, 4, 7]


def test_no_rows_make_no_batches():
    rows = messages(pa.nulls(0, pa.binary()), pa.nulls(0, pa.binary()), np.zeros(0, np.int64))
    starts = cut_batches(size_bounds(rows), np.zeros(0, np.int64), 1000)
    assert encode_records(rows, starts).counts == []


def test_slices_of_columns_are_encoded_as_slices():
    column = pa.array([b"%d" % n for n in range(100)])
    rows = messages(column.slice(10, 5), column.slice(90, 5), np.arange(5))
    records = encode_records(rows, np.array([0, 2]))
    out = [record[2:4] for nth in range(2) for record in decode_batch(sealed(records, nth))]
    assert out == [(b"%d" % (10 + n), b"%d" % (90 + n)) for n in range(5)]


@pytest.mark.parametrize("stamps", [[5, 3, 9, 1], [2**60, 0, -1, 2**50]])
def test_falling_timestamps_survive(stamps):
    rows = [(None, b"v", (), stamp) for stamp in stamps]
    (batch,) = write(rows)
    assert [record.timestamp for record in decode_batch(batch)] == stamps
    assert read_header(batch).max_timestamp == max(stamps)
