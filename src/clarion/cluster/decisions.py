"""What the cluster manager decides: pure, from an image of the cluster, and each decision with its reason in words.

Decisions look at how things are, not at what happened: a controller that takes over in the middle of anything comes to
the same ones. What it has to remember is only since when brokers have been gone, and since when they could lead again
what is theirs to lead; a new controller counts from its own beginning.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final, Generic, NamedTuple, TypeVar

from clarion.cluster.elections import ElectionRules, Verdict, is_calm, prefer, reassign, settle
from clarion.cluster.image import ClusterImage, Topic
from clarion.cluster.placement import Load, Racks, add_replica
from clarion.cluster.schema import UNSAID, PartitionState
from clarion.model.ids import TopicId

RulesOf = Callable[[Topic], ElectionRules]
K = TypeVar("K", int, TopicId)

_FILLED_AT_ONCE_MAX: Final = 50  # replicas being filled in the whole cluster: more would only share the same disks


class Policy(NamedTuple):
    """What operators decide for the whole cluster."""

    replication_factor: int = 3  # of topics for which nobody has asked for another
    replace_after_seconds: float = 600.0  # a broker that was gone for so long is not expected back
    # A preferred leader leads again when it could for so long: each change of leaders costs clients a moment, and one
    # that has just come back may soon be gone again. None: never.
    prefer_after_seconds: float | None = 5.0


class Decision(NamedTuple):
    topic: Topic
    partition: int
    state: PartitionState  # to be; its `revision` is that of the state it replaces
    reason: str

    @property
    def sentence(self) -> str:
        return f"{self.topic.name}-{self.partition}: {self.reason}"

    @property
    def is_election(self) -> bool:
        """A leader's term begins."""
        return self.state.leader_epoch != self.topic.partitions[self.partition].leader_epoch


class Since(Generic[K]):
    """Since when something has been true of brokers, or of topics."""

    def __init__(self) -> None:
        self._since: dict[K, float] = {}

    def note(self, those: set[K], now: float) -> None:
        """It is true of these now, and of no others."""
        self._since = {one: self._since.get(one, now) for one in sorted(those)}

    def longer_than(self, seconds: float, now: float) -> frozenset[K]:
        return frozenset(one for one, since in self._since.items() if since + seconds <= now)

    def next_deadline(self, seconds: float, now: float) -> float | None:
        """When it will have been so long for the next of them; for whom it has been, there is nothing to wait for."""
        return min((since + seconds for since in self._since.values() if since + seconds > now), default=None)


def absent_holders(image: ClusterImage) -> set[int]:
    """Brokers that hold replicas, and are gone."""
    holders = {one for topic in image.topics.values() for state in topic.partitions for one in state.replicas}
    return holders - image.brokers.keys()


def elections(image: ClusterImage, rules_of: RulesOf) -> list[Decision]:
    """What cannot wait: partitions whose leader is gone, and then in-sync sets with somebody in them who is."""
    led: list[Decision] = []
    others: list[Decision] = []
    for topic, index, state in _partitions(image):
        verdict = None if is_calm(state, image.brokers) else settle(state, rules_of(topic), image.brokers)
        if verdict is not None:
            is_led_anew = verdict.state.leader_epoch != state.leader_epoch
            (led if is_led_anew else others).append(_decision(topic, index, verdict))
    return led + others


def preferences(image: ClusterImage, rules_of: RulesOf) -> Iterator[Decision]:
    """Back to preferred leaders, where nothing else is to be done."""
    for topic, index, state in _partitions(image):
        if state.leader == state.replicas[0] or state.adding:
            continue
        verdict = prefer(state, rules_of(topic), image.brokers)
        if verdict is not None:
            yield _decision(topic, index, verdict)


def repairs(image: ClusterImage, policy: Policy, written_off: frozenset[int]) -> Iterator[Decision]:
    """Replicas to be filled: where there are too few, and in place of those whose brokers will not come back."""
    racks: Racks = {one.id: one.rack for one in image.brokers.values() if not one.is_leaving}
    load = Load.of(state.replicas for _, _, state in _partitions(image))
    room = _FILLED_AT_ONCE_MAX - sum(len(state.adding) for _, _, state in _partitions(image))
    for topic, index, state in _partitions(image):
        if room <= 0:
            return
        target = _repaired(topic, state, policy, racks, load, written_off)
        if target is None:
            continue
        begun = reassign(state, target)
        room -= len(begun.adding)
        load.replicas.update(begun.adding)
        yield Decision(topic, index, begun, _why_moved(begun, written_off))


def forgettable(image: ClusterImage) -> list[TopicId]:
    """Deleted topics of which no broker has files any more. One that is away still has them, and removes them then."""
    return [
        topic_id
        for topic_id in image.deleting
        if {one for state in image.unclaimed.get(topic_id, {}).values() for one in state.replicas}
        <= image.removed.get(topic_id, frozenset())
    ]


def unclaimed_topics(image: ClusterImage) -> set[TopicId]:
    """Of these there are partitions in the store, and nothing else: they are being made, or never were to the end."""
    return image.unclaimed.keys() - image.topics_by_id.keys() - image.deleting.keys()


def _repaired(
    topic: Topic, state: PartitionState, policy: Policy, racks: Racks, load: Load, written_off: frozenset[int]
) -> tuple[int, ...] | None:
    """The replicas that a partition should have; None if it has them, or is about to."""
    if state.adding or state.leader not in racks:
        return None
    wanted = topic.replication_factor or policy.replication_factor
    target = tuple(one for one in state.replicas if one not in written_off)
    while len(target) < min(wanted, len(racks)):
        one_more = add_replica(target, racks, load)
        if one_more is None:
            break
        target += (one_more,)
    is_better = len(target) >= len(state.replicas) and set(target) != set(state.replicas)
    return target if is_better else None


def _why_moved(begun: PartitionState, written_off: frozenset[int]) -> str:
    filled = ", ".join(map(str, begun.adding))
    gone = [one for one in begun.removing if one in written_off]
    if gone:
        return f"a replica is being filled on broker {filled}, because broker {', '.join(map(str, gone))} stays away"
    return f"a replica is being filled on broker {filled}, because there are too few"


def summary(decisions: list[Decision]) -> str:
    """Many of one kind in one line."""
    if len(decisions) == 1:
        return decisions[0].sentence
    counts = Counter(decision.reason for decision in decisions)
    return "; ".join(
        f"{count} partition{'' if count == 1 else 's'}: {reason}" for reason, count in counts.most_common(5)
    )


def _partitions(image: ClusterImage) -> Iterator[tuple[Topic, int, PartitionState]]:
    """Those of which it is said who leads them."""
    for topic in image.topics.values():
        for index, state in enumerate(topic.partitions):
            if state is not UNSAID:
                yield topic, index, state


def _decision(topic: Topic, index: int, verdict: Verdict) -> Decision:
    return Decision(topic, index, verdict.state, verdict.reason)
