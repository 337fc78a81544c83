"""A partition of a queue as one reader sees it: which of its messages it holds, and what was said of them.

The application's thread says something of a message; the event loop takes what was said in portions, each of which a
broker takes as a whole or not at all. Dictionaries are changed one entry at a time, which threads may do at once.

    held ──said──▶ waiting ──portion──▶ sent ──▶ confirmed
                      ▲                  │ └─ refused ──▶ in halves again; one alone is lost: it comes again
                      └─ connection lost ┘
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple
from uuid import UUID

from clarion.client.errors import ClosedError, Unsupported
from clarion.client.received import ReceivedMessage, Said, SettlementKind
from clarion.wire.messages.share_groups import AcknowledgementBatch

_PORTION_MAX: Final = 5_000  # said in one request: some hundred kilobytes where no two are neighbours
_HELD_MAX: Final = 50_000  # a partition has 10,000 locks at most, or one large batch: what is older is others' by now
_LOST_MAX: Final = 10_000  # that are remembered until somebody asks
_ENDED: Final = 2**31  # behind every term
_GAP: Final = Said(SettlementKind.GAP)
_EXTEND: Final = Said(SettlementKind.EXTEND)
_RELEASE: Final = Said(SettlementKind.RELEASE)


class Portion(NamedTuple):
    """What goes to the broker at once, in the order of the offsets."""

    said: list[tuple[int, Said]]
    term: int  # of the leader that the messages are held of
    was_sent: bool = False  # and its answer was lost

    @property
    def extends(self) -> bool:
        return any(one.what is SettlementKind.EXTEND for _, one in self.said)

    def batches(self) -> tuple[AcknowledgementBatch, ...]:
        """Neighbours of which the same is said, but for the type, share a batch, with a type for each."""
        batches: list[AcknowledgementBatch] = []
        first, like = self.said[0]
        kinds: list[int] = []
        for offset, one in self.said:
            if offset != first + len(kinds) or (one is not like and one[1:] != like[1:]):
                batches.append(_batch(first, kinds, like))
                first, like, kinds = offset, one, []
            kinds.append(one[0])
        batches.append(_batch(first, kinds, like))
        return tuple(batches)


def _batch(first: int, kinds: list[int], like: Said) -> AcknowledgementBatch:
    return AcknowledgementBatch(
        first_offset=first,
        last_offset=first + len(kinds) - 1,
        acknowledge_types=tuple(kinds),
        delay_ms=like.delay_ms,
        reason=like.reason,
        extend_ms=like.extend_ms,
    )


class HeldPartition:
    def __init__(self, topic: str, topic_id: UUID, partition: int, tell: Callable[[HeldPartition], None]) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.partition = partition
        self.term = -1  # the leader's epoch: what is held, is held of this leader
        self.held: dict[int, int] = {}  # by offset: how often it was delivered
        self.may_renew = True  # the application's own extensions; the broker may say that locks are not renewed
        self.lost: list[int] = []
        self._furthest = -1  # offset that was ever held
        self._tell = tell
        self._is_told = False
        self._waiting: dict[int, Said] = {}
        self._portions: deque[Portion] = deque()  # to be said again, as they are
        self._sent = 0

    @property
    def place(self) -> tuple[str, int]:
        return self.topic, self.partition

    # In any thread

    def settle(self, message: ReceivedMessage, said: Said) -> None:
        offset = message.offset
        if said.what is SettlementKind.EXTEND and not self.may_renew:
            raise Unsupported(
                f"{message!r} cannot be extended: this queue renews no locks (share.renew.acknowledge.enable), or its "
                "broker is too old for it"
            )
        if self.held.get(offset) != message.deliveries:
            self._lose(offset)
            if self.has_ended:
                raise ClosedError(f"the reading of {message!r} has ended, and others get it; settle messages before")
            return
        if said.what is not SettlementKind.EXTEND and self.held.pop(offset, None) is None:
            self._lose(offset)  # another term has begun in this very moment
            return
        self._waiting[offset] = said
        if not self._is_told:
            self._is_told = True
            self._tell(self)

    def note_gaps(self, offsets: Iterable[int]) -> None:
        """Nothing is there: compacted, or a marker."""
        for offset in offsets:
            if self.held.pop(offset, None) is not None:
                self._waiting[offset] = _GAP

    def release_within(self, first: int, last: int) -> set[int]:
        """Nobody can make messages of these offsets: they come again until their deliveries are used up."""
        released = {offset for offset in range(first, last + 1) if self.held.pop(offset, None) is not None}
        self._waiting.update(dict.fromkeys(released, _RELEASE))
        return released

    # On the event loop

    def acquired(self, first: int, last: int, deliveries: int) -> None:
        if first <= self._furthest:  # they come again, and are the newest now
            for offset in range(first, last + 1):
                self.held.pop(offset, None)
        self._furthest = max(self._furthest, last)
        self.held.update(dict.fromkeys(range(first, last + 1), deliveries))
        if len(self.held) > _HELD_MAX:
            for offset in list(self.held)[: len(self.held) - _HELD_MAX]:
                self.held.pop(offset, None)

    def extend(self, offsets: Iterable[int]) -> None:
        """What the application has said meanwhile goes before."""
        for offset in offsets:
            if offset in self.held:
                self._waiting.setdefault(offset, _EXTEND)

    @property
    def has_something_to_say(self) -> bool:
        return bool(self._waiting or self._portions)

    @property
    def is_in_use(self) -> bool:
        """The application has messages of it, or has said what is not known to have arrived."""
        return bool(self.held) or not self.is_settled

    @property
    def has_ended(self) -> bool:
        return self.term == _ENDED

    @property
    def is_settled(self) -> bool:
        """Everything that was said is known to have arrived, or to be lost."""
        return not (self._waiting or self._portions or self._sent)

    def take(self) -> Portion | None:
        """What is to be said next; it is given back by one of the three below."""
        if self._portions:
            portion = self._portions.popleft()
        else:
            self._is_told = False  # first: who says something from now on tells again
            said = [self._waiting.popitem() for _ in range(min(len(self._waiting), _PORTION_MAX))]
            if not said:
                return None
            said.sort()
            portion = Portion(said, self.term)
        self._sent += 1
        return portion

    def confirmed(self, portion: Portion) -> None:
        self._sent -= 1

    def unanswered(self, portion: Portion, *, was_sent: bool) -> None:
        """To be said again as a whole, so that it is known what a refusal means."""
        self._sent -= 1
        if portion.term != self.term:
            self._lose_all(portion)
        else:
            self._portions.appendleft(portion._replace(was_sent=was_sent or portion.was_sent))

    def refused(self, portion: Portion) -> None:
        """One of them is not ours any more. Which one, only saying less at a time can tell."""
        self._sent -= 1
        if portion.term != self.term:
            self._lose_all(portion)
        elif portion.was_sent:
            return  # it was taken when it was said first: that is why within the same term it is refused now
        elif len(portion.said) > 1:
            middle = len(portion.said) // 2
            halves = portion.said[:middle], portion.said[middle:]
            self._portions.extend(portion._replace(said=half) for half in halves)
        else:
            self.held.pop(portion.said[0][0], None)
            self._lose_all(portion)

    def not_renewed(self, portion: Portion) -> None:
        """Nothing of it has counted, because locks are not renewed here: they end when they end. The rest is said again
        without; what the application wanted to extend, `flush` tells."""
        for offset, one in portion.said:
            if one.what is SettlementKind.EXTEND and one is not _EXTEND:
                self._lose(offset)
        said = [one for one in portion.said if one[1].what is not SettlementKind.EXTEND]
        if said:
            self.unanswered(portion._replace(said=said), was_sent=False)
        else:
            self._sent -= 1

    def begin_term(self, epoch: int) -> None:
        """Another leader, or the same after a restart: what was held of the one before goes to whoever comes."""
        if epoch == self.term:
            return
        self.term = epoch
        self.held.clear()
        portions, self._portions = self._portions, deque()
        for portion in portions:
            self._lose_all(portion)
        said = [self._waiting.popitem() for _ in range(len(self._waiting))]
        self._lose_all(Portion(said, epoch))

    def end(self) -> None:
        """Nobody reads any more, or the topic was deleted: what is said from now on comes too late."""
        self.begin_term(_ENDED)

    def take_lost(self) -> list[tuple[str, int, int]]:
        count = len(self.lost)
        lost, self.lost[:count] = self.lost[:count], []
        return [(self.topic, self.partition, offset) for offset in lost]

    def _lose_all(self, portion: Portion) -> None:
        for offset, said in portion.said:
            if said.what not in (SettlementKind.GAP, SettlementKind.EXTEND):
                self._lose(offset)

    def _lose(self, offset: int) -> None:
        if len(self.lost) < _LOST_MAX:
            self.lost.append(offset)
