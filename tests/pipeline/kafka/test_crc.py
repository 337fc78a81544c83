"""The numpy CRC against the package, at every length around the lanes' edges."""

import os

import crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clarion.pipeline.kafka.crc import numpy_crc32c
from tests.pipeline.kafka.messages import unhurried


@unhurried
@given(st.binary(max_size=3000))
def test_numpy_and_the_package_agree(data):
    assert numpy_crc32c(data) == crc32c.crc32c(data)


@unhurried
@given(st.binary(max_size=300), st.binary(max_size=300))
def test_a_checksum_goes_on_where_another_ended(first, second):
    assert numpy_crc32c(second, numpy_crc32c(first)) == crc32c.crc32c(first + second)


@pytest.mark.parametrize("size", [0, 1, 15, 16, 17, 65_535, 65_536, 65_537, 1_000_003])
def test_they_agree_on_large_data(size):
    data = os.urandom(size)
    assert numpy_crc32c(data) == crc32c.crc32c(data)
