"""Rows counted on their way through a plan, without a second pass over them."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

from clarion.pipeline.definition import Run

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_numbers = count(1)  # one plan may count the same thing in two places (a join of two topics): names must differ


def observed(df: DataFrame, name: str, counted: Column, run: Run) -> DataFrame:
    """The same rows; a stream's progress reports carry the count, a batch leaves it in `run.observations`."""
    unique = f"{name}_{next(_numbers)}"
    if df.isStreaming:
        return df.observe(unique, counted.alias("count"))
    from pyspark.sql import Observation

    observation = Observation(unique)
    run.observations[unique] = observation
    return df.observe(observation, counted.alias("count"))
