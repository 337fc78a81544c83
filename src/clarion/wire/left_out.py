"""Bytes of a message that are not written into it, because they are sent from where they lie."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class LeftOut(NamedTuple):
    """In the place of a field's bytes: the message says how many there are, and whoever sends it puts them there."""

    length: int
    parts: Sequence[object]  # where they are, as the sender knows it
