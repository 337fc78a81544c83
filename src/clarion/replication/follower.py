"""What a follower decides: from where to fetch, what of a reply to write, where to cut its log, what is committed.

    position(…)               what to ask the leader for
    on_diverging(…)           the two logs part: what lies behind goes, and the next fetch compares again (KIP-279)
    on_out_of_range(…)        the leader has nothing there: begin anew where its log begins
    on_batch(header)          whether the batch is to be written, as it is
    on_appended(end)
    on_leader_watermark(…)    the watermark is the leader's, as far as this log reaches

A log is cut by epochs alone, never by its watermark, which is older than the leader's: behind it lies what was
acknowledged as well as what never will be. The leader compares before it sends a byte or counts the follower: every
fetch tells the epoch of the last batch that the follower has, and only a log that agrees with the leader's up to its
end is answered with messages.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from clarion.log.epochs import UNKNOWN, LeaderEpochs
from clarion.model.errors import ErrorCode, KafkaError
from clarion.model.ids import LogPosition
from clarion.replication.watermark import Uncommitted
from clarion.wire.batch import BatchHeader

FETCHES_IN_FLIGHT_MAX: Final = 2  # to one leader: one that waits for news, and one that tells some


class Position(NamedTuple):
    """What a fetch tells the leader of a follower's log."""

    next_offset: int
    last_epoch: int  # of its last batch; -1 if it has none
    flushed_offset: int
    start_offset: int
    leader_epoch: int  # in which the follower believes the leader to lead


class Follower:
    def __init__(
        self, leader: int, leader_epoch: int, end: LogPosition, high_watermark: LogPosition, uncommitted: Uncommitted
    ) -> None:
        self.leader = leader
        self.leader_epoch = leader_epoch
        self.end = end
        self.high_watermark = high_watermark
        self._uncommitted = uncommitted
        if high_watermark < end:
            uncommitted.add(end)

    def on_diverging(self, epoch: int, end_offset: int, epochs: LeaderEpochs) -> int:
        """`epoch`, `end_offset`: the last epoch that the leader may share with this log, and where it ended there.

        Returns where to cut: the lesser of what the two have of that epoch. The next fetch tells whether they agree.
        """
        own = epochs.end_offset_for(epoch)
        own_end = self.end.offset if own == UNKNOWN else own[1]
        offset = min(end_offset, own_end)
        if offset >= self.end.offset:
            raise KafkaError(
                ErrorCode.UNKNOWN_SERVER_ERROR,
                f"the leader's log parts from this one at {end_offset} in epoch {epoch}, where nothing can be cut",
            )
        return offset

    def on_out_of_range(self, leader_start: int) -> int | None:
        """The offset at which the log begins anew; None if this is no reason to."""
        if leader_start < 0 or leader_start == self.end.offset:
            return None
        return leader_start

    def on_cut(self, end: LogPosition) -> None:
        """The log was cut, or begun anew. Below the watermark only after an election that allowed losing messages."""
        self.end = end
        self._uncommitted.cut(end)
        self.high_watermark = min(self.high_watermark, end)
        if self.high_watermark < end:
            self._uncommitted.add(end)

    def on_batch(self, header: BatchHeader, latest_epoch: int, *, is_empty: bool = False) -> bool:
        """False if the log has it already: two fetches under way may bring the same.

        `is_empty`: the log has nothing. It may then begin in the middle of the batch, as the leader's does.
        """
        if header.next_offset <= self.end.offset:
            return False
        if header.base_offset < self.end.offset and not is_empty:
            raise _damaged(f"a batch that begins at {header.base_offset} where the log ends at {self.end.offset}")
        if header.leader_epoch > self.leader_epoch or 0 <= header.leader_epoch < latest_epoch:
            raise _damaged(f"a batch of epoch {header.leader_epoch} behind {latest_epoch}, from {self.leader_epoch}")
        return True

    def on_appended(self, end: LogPosition) -> None:
        self.end = end
        self._uncommitted.add(end)

    def on_roll(self, end: LogPosition) -> None:
        """The end is at the beginning of a new file, at the same offset."""
        is_all_committed = self.high_watermark.offset == end.offset
        self.end = end
        if is_all_committed:
            self.high_watermark = end

    def on_leader_watermark(self, offset: int) -> bool:
        """Whether more is committed than before."""
        return self.on_committed(self._uncommitted.last_end(min(offset, self.end.offset), self.high_watermark))

    def on_committed(self, position: LogPosition) -> bool:
        if position <= self.high_watermark:
            return False
        self.high_watermark = position
        self._uncommitted.forget(position)
        return True


def _damaged(what: str) -> KafkaError:
    return KafkaError(ErrorCode.CORRUPT_MESSAGE, f"the leader sent {what}")
