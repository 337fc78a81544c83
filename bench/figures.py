"""From rounds to one figure.

A busy neighbour only ever slows a round down: a rate is the best of its rounds, a cost the lowest, and a tail, which a
quiet moment can also flatter, the median.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import Enum
from statistics import median


class Kind(Enum):
    """What a figure is, which says which of its rounds counts and which way is better."""

    RATE = "rate"
    COST = "cost"
    TAIL = "tail"

    @property
    def more_is_better(self) -> bool:
        return self is Kind.RATE


def of_rounds(kind: Kind, rounds: Sequence[float]) -> float:
    """The one figure that stands for these rounds."""
    match kind:
        case Kind.RATE:
            return max(rounds)
        case Kind.COST:
            return min(rounds)
        case Kind.TAIL:
            return median(rounds)


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Nearest rank: the smallest value that at least this share of the sorted values does not exceed."""
    if not ordered:
        raise ValueError("no values, no percentile")
    rank = math.ceil(len(ordered) * percent / 100)
    return ordered[max(0, rank - 1)]


def ratio(ours: float, theirs: float) -> float | None:
    """Ours in units of theirs; None where theirs is nothing."""
    return ours / theirs if theirs else None


def order_of_round(names: Sequence[str], round_number: int) -> list[str]:
    """Who goes when: every other round runs backwards, so that nobody always has the quiet or the warm machine."""
    return list(names) if round_number % 2 == 0 else list(reversed(names))
