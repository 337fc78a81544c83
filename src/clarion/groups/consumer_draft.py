"""A KIP-848 group as it will be when the records of the present step are replayed.

The draft starts as the group is. Each method writes the records of one change and remembers what the next method
must know; the group itself stays as it is until the driver replays the records.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from uuid import UUID

from clarion.groups import records as r
from clarion.groups.assignors import ASSIGNORS, DEFAULT_ASSIGNOR, Wishes
from clarion.groups.consumer_group import ConsumerGroup
from clarion.groups.partitions import NOTHING, Partitions, union
from clarion.groups.shard import Step
from clarion.groups.subscriptions import metadata_hash, resolve, subscriptions


class Draft:
    def __init__(self, group: ConsumerGroup, step: Step) -> None:
        self.group = group
        self.step = step
        self.members: Mapping[str, r.MemberMetadata] = group.members
        self.regexes: Mapping[str, r.ResolvedRegex] = group.regexes
        self.targets: Mapping[str, Partitions] = group.targets
        self.target_epoch = group.target_epoch
        self._renamed: dict[str, str] = {}  # old id → new id
        self._is_changed = False  # so that the group needs a new epoch

    def target(self, member_id: str) -> Partitions:
        return self.targets.get(member_id, NOTHING)

    def is_free(self, partition: tuple[UUID, int], member_id: str) -> bool:
        """Nobody holds it, but perhaps the member itself."""
        owner = self.group.owners.get(partition)
        return owner is None or self._renamed.get(owner, owner) == member_id

    def held(self, member_id: str) -> Partitions:
        """What the member may still be working on."""
        current = self.group.current(member_id)
        return union(current.assigned, current.pending_revocation)

    def put_member(self, member_id: str, member: r.MemberMetadata) -> None:
        before = self.members.get(member_id)
        if member == before:
            return
        self.members = {**self.members, member_id: member}
        self._write(r.MEMBER_TYPE, member_id, r.encode_member(member))
        if before is None or _wish(before) != _wish(member):
            self._is_changed = True

    def remove_members(self, member_ids: Iterable[str]) -> None:
        gone = dict.fromkeys(member_ids)
        self.members = {one: member for one, member in self.members.items() if one not in gone}
        for member_id in gone:
            self._erase(member_id)
        self._is_changed = True

    def erase_group(self) -> None:
        """Tombstones for all that the log has of this group, but for its offsets."""
        for member_id in self.members:
            self._erase(member_id)
        for regex in self.regexes:
            self._write(r.REGEX_TYPE, regex, None)
        self._write(r.TARGET_EPOCH_TYPE, "", None)
        self._write(r.CONSUMER_GROUP_TYPE, "", None)

    def rename_member(self, old_id: str, new_id: str) -> None:
        """A static member came back with a new id; what was its own stays its own."""
        member, target = self.members[old_id], self.target(old_id)
        self._erase(old_id)
        self.members = {new_id if one == old_id else one: kept for one, kept in self.members.items()}
        self.targets = {new_id if one == old_id else one: kept for one, kept in self.targets.items()}
        self._renamed[old_id] = new_id
        self._write(r.MEMBER_TYPE, new_id, r.encode_member(member))
        self._write(r.TARGET_MEMBER_TYPE, new_id, r.encode_target(target))

    def put_current(self, member_id: str, current: r.CurrentAssignment) -> None:
        if current != self.group.currents.get(member_id):
            self._write(r.CURRENT_TYPE, member_id, r.encode_current(current))

    def follow_topics(self) -> None:
        """Resolve the regular expressions, and see whether the subscribed topics are what they were."""
        shard = self.step.shard
        if not self._is_changed and self.group.topics_version_seen == shard.topics_version:
            return
        self._resolve_regexes()
        self._is_changed |= self._hash() != self.group.metadata_hash
        # Soft, and true even if the append is lost: then the hash in the log differs from the one here next time too.
        self.group.topics_version_seen = -1 if self._is_changed else shard.topics_version

    def advance(self) -> None:
        """A new epoch if something changed, and a target for it."""
        epoch = self.group.epoch
        if self._is_changed:
            epoch += 1
            self._write(r.CONSUMER_GROUP_TYPE, "", r.encode_group_epoch(r.GroupEpoch(epoch, self._hash())))
        if epoch > self.target_epoch:
            self._assign()
            self.target_epoch = epoch
            target = r.TargetEpoch(epoch, self.step.wall_ms)
            self._write(r.TARGET_EPOCH_TYPE, "", r.encode_target_epoch(target))

    def bump(self) -> None:
        """A new epoch without a target: somebody left, and the next heartbeat of anybody will divide the work."""
        epoch = self.group.epoch + 1
        self._drop_unused_regexes()
        self._write(r.CONSUMER_GROUP_TYPE, "", r.encode_group_epoch(r.GroupEpoch(epoch, self._hash())))
        if not self.members:
            # The target of nobody is nothing; its time tells since when the group is empty, for the expiry of offsets.
            self._write(r.TARGET_EPOCH_TYPE, "", r.encode_target_epoch(r.TargetEpoch(epoch, self.step.wall_ms)))

    def _resolve_regexes(self) -> None:
        self._drop_unused_regexes()
        resolved = dict(self.regexes)
        for regex in _regexes(self.members):
            topics = resolve(regex, self.step.shard.topics)
            if regex not in resolved or resolved[regex].topics != topics:
                resolved[regex] = r.ResolvedRegex(topics, self.step.shard.topics_version, self.step.wall_ms)
                self._write(r.REGEX_TYPE, regex, r.encode_regex(resolved[regex]))
        self.regexes = resolved

    def _drop_unused_regexes(self) -> None:
        used = _regexes(self.members)
        for regex in self.regexes:
            if regex not in used:
                self._write(r.REGEX_TYPE, regex, None)
        self.regexes = {regex: resolved for regex, resolved in self.regexes.items() if regex in used}

    def _hash(self) -> int:
        return metadata_hash(self.members, self.regexes, self.step.shard.topics)

    def _assign(self) -> None:
        """Divide the work of the present members, and write down whose share has changed."""
        view = self.step.shard.topics
        wanted = subscriptions(self.members, self.regexes, view)
        counts = {info.topic_id: info.partition_count for info in view.topics.values()}
        topics = sorted(frozenset().union(*set(wanted.values())))
        wishes = Wishes(
            members=sorted(self.members, key=lambda one: (self.members[one].instance_id or one, one)),
            subscriptions=wanted,
            partition_counts={topic: counts[topic] for topic in topics},
            previous=self.targets,
        )
        assigned = ASSIGNORS[assignor_of(self.members)](wishes)
        for member_id, partitions in assigned.items():
            if self.targets.get(member_id) != partitions:
                self._write(r.TARGET_MEMBER_TYPE, member_id, r.encode_target(partitions))
        self.targets = assigned

    def _erase(self, member_id: str) -> None:
        self._write(r.CURRENT_TYPE, member_id, None)
        self._write(r.TARGET_MEMBER_TYPE, member_id, None)
        self._write(r.MEMBER_TYPE, member_id, None)

    def _write(self, kind: int, name: str, value: bytes | None) -> None:
        self.step.out.write(r.encode_key(r.Key(kind, self.group.group_id, name)), value)


def assignor_of(members: Mapping[str, r.MemberMetadata]) -> str:
    """The assignor that most members ask for."""
    votes = Counter(member.server_assignor for member in members.values() if member.server_assignor in ASSIGNORS)
    return max(sorted(filter(None, votes)), key=lambda name: votes[name], default=DEFAULT_ASSIGNOR)


def _wish(member: r.MemberMetadata) -> tuple[tuple[str, ...], str | None, str | None]:
    return member.subscribed_topic_names, member.subscribed_topic_regex, member.server_assignor


def _regexes(members: Mapping[str, r.MemberMetadata]) -> dict[str, None]:
    return {one.subscribed_topic_regex: None for one in members.values() if one.subscribed_topic_regex}
