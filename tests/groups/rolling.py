"""A classic consumer that really divides, takes and gives up partitions, eagerly or cooperatively, a step at a time.

As real clients do: when it leads it assigns for everybody from their subscriptions; a cooperative one keeps what it has
while it rejoins, and rejoins at once when it has given something up.
"""

from __future__ import annotations

from collections.abc import Mapping

from clarion.groups.consumer_protocol import read_assignment, read_subscription, write_assignment
from clarion.model.errors import ErrorCode
from clarion.wire.cursor import FieldWriter
from tests.groups.driver import LOST, ClassicClient, Driver

Places = frozenset[tuple[str, int]]  # (topic, partition)

REJOIN = (ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION)
FORGOTTEN = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID)


def rich_subscription(topics: tuple[str, ...], owned: Places = frozenset(), *, version: int = 3) -> bytes:
    writer = FieldWriter().int16(version).count(len(topics))
    for topic in topics:
        writer.string(topic)
    writer.int32(-1)
    if version >= 1:
        _put_places(writer, owned)
    if version >= 2:
        writer.int32(-1)
    if version >= 3:
        writer.string("rack-1")
    return writer.done()


def _put_places(writer: FieldWriter, places: Places) -> None:
    by_topic = _by_topic(places)
    writer.count(len(by_topic))
    for topic, numbers in by_topic.items():
        writer.string(topic).count(len(numbers))
        for number in sorted(numbers):
            writer.int32(number)


def _by_topic(places: Places) -> Mapping[str, frozenset[int]]:
    topics = sorted({topic for topic, _ in places})
    return {topic: frozenset(number for name, number in places if name == topic) for topic in topics}


def _places(partitions: Mapping[str, frozenset[int]]) -> Places:
    return frozenset((topic, number) for topic, numbers in partitions.items() for number in numbers)


class RollingClassic(ClassicClient):
    def __init__(self, driver: Driver, *topics: str, cooperative: bool = False, **wishes) -> None:
        super().__init__(driver, **wishes)
        self.topics = topics
        self.is_cooperative = cooperative
        self.metadata_version = wishes.get("metadata_version", 3 if cooperative else 0)
        self.owned: Places = frozenset()
        self.breaks = 0  # how often it stood without work that it had
        self.phase = "out"
        self.members = ()  # whom it leads
        self.divided = driver.topics

    @property
    def protocols(self):
        owned = self.owned if self.is_cooperative else frozenset()
        name = "cooperative-sticky" if self.is_cooperative else "range"
        return ((name, rich_subscription(self.topics, owned, version=self.metadata_version)),)

    @protocols.setter
    def protocols(self, _ignored) -> None:
        pass

    def step(self) -> None:
        getattr(self, f"_{self.phase}")()

    def run(self, steps: int = 6) -> RollingClassic:
        for _ in range(steps):
            self.step()
        return self

    def _out(self) -> None:
        if not self.is_cooperative:
            self.breaks += bool(self.owned)
            self.owned = frozenset()
        self.join()
        self.phase = "joining"

    def _joining(self) -> None:
        answer = self.driver.answers.get(self.ticket)
        if answer is None:
            return
        code = ErrorCode.COORDINATOR_NOT_AVAILABLE if answer is LOST else ErrorCode(answer.error_code)
        if code != ErrorCode.NONE:
            self._refused(code)
            return
        self.joined()
        self.members = answer.members if answer.leader == answer.member_id else ()
        self.skips = answer.skip_assignment
        self.phase = "syncing"
        self.sync_ticket = None
        self._syncing()

    def _syncing(self) -> None:
        if self.sync_ticket is None:
            self.sync({} if self.skips else self._divide())
        answer = self.driver.answers.get(self.sync_ticket)
        if answer is None:
            return
        self.sync_ticket = None
        if answer is LOST:
            return
        if answer.error_code:
            self._refused(ErrorCode(answer.error_code))
            return
        self.phase = "working"
        assigned = _places(read_assignment(answer.assignment).partitions)
        gave_up = self.owned - assigned
        self.owned = assigned
        if gave_up and self.is_cooperative:
            self._out()

    def _working(self) -> None:
        if self.members and self.divided != self.driver.topics:
            self._out()  # a leader watches the topics, and asks for a new assignment when they change
            return
        code = self.beat()
        if code != ErrorCode.NONE:
            self._refused(code)

    def _refused(self, code: ErrorCode) -> None:
        if code == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = self.driver.answers[self.ticket].member_id
        elif code in FORGOTTEN:
            self._lose_everything()
            self.member_id = ""
        elif code == ErrorCode.ILLEGAL_GENERATION:
            self._lose_everything()
        elif code not in (*REJOIN, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS):
            raise AssertionError(f"a member was told {code.name} while {self.phase}")
        self._out()

    def _lose_everything(self) -> None:
        self.breaks += bool(self.owned)
        self.owned = frozenset()

    def leave(self) -> ErrorCode:
        self.owned = frozenset()
        return super().leave()

    def _divide(self) -> dict[str, bytes]:
        """The leader's work: round-robin over those who want a topic; cooperatively, nothing before it is free."""
        self.divided = self.driver.topics
        wishes = {one.member_id: read_subscription(one.metadata) for one in self.members}
        owners = {place: member for member, wish in wishes.items() for place in _places(wish.owned)}
        shares: dict[str, set[tuple[str, int]]] = {member: set() for member in wishes}
        for topic, info in sorted(self.driver.topics.items()):
            takers = sorted(member for member, wish in wishes.items() if topic in wish.topics)
            for number in range(info.partition_count if takers else 0):
                taker = takers[number % len(takers)]
                if not self.is_cooperative or owners.get((topic, number), taker) == taker:
                    shares[taker].add((topic, number))
        return {member: write_assignment(_by_topic(frozenset(share)), 0) for member, share in shares.items()}
