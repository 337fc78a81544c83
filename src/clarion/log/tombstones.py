"""Whether tombstones may go: decided in the loop, asked in the thread that compacts."""

from __future__ import annotations


class Tombstones:
    """In one run of compaction. Once they have to stay, none goes in the rest of the run, which goes on without that.

    A replica may come to lack something at any moment, and then would bring back what it never heard was deleted. What
    was rewritten without some tombstones and not swapped in by then is refused, and is rewritten with them.
    """

    __slots__ = ("_is_refused", "may_go")

    def __init__(self, *, may_go: bool = True) -> None:
        self.may_go = may_go
        self._is_refused = False

    def keep(self) -> None:
        self.may_go = False

    def refuse(self) -> None:
        """In the loop: the segment that was yielded last is not swapped in, because it lacks some."""
        self.may_go = False
        self._is_refused = True

    def take_refusal(self) -> bool:
        """In the thread."""
        was_refused, self._is_refused = self._is_refused, False
        return was_refused
