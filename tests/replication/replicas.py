"""Replicas of one partition in one process, on disks that lose power, with a network that is a function call.

The partitions are the real ones; of the cluster there is what it agrees on (one `Term`), and news of it reaches each
replica when the story says so. A rule can be switched off: the story then goes on as if somebody had forgotten it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto

from clarion.log.config import LogConfig
from clarion.log.log import Log
from clarion.model.errors import ErrorCode, KafkaError
from clarion.model.ids import TopicPartition
from clarion.model.topic_settings import TopicSettings, parse
from clarion.replication import GroupCommit, LoopThreads, Membership, Partition, Term
from clarion.replication.leader import LAG_MS_MAX
from clarion.replication.producer_files import load_producers
from clarion.wire.records import decode_batch, encode_batch
from clarion.world import make_lasting_folder
from tests.log.batches import TOPIC_ID
from tests.replication.bench import HeldExecutor
from tests.sim.disk import SimDisk

NOW_MS = 1_700_000_000_000
TP = TopicPartition("t", 0)


class Rule(Enum):
    TRUNCATION_BY_EPOCH = auto()  # off: a follower cuts its log to its watermark, and nobody compares
    IN_SYNC_QUORUM = auto()  # off: the leader waits for nobody
    WATERMARK_OF_WHAT_THEY_HAVE = auto()  # off: what is sent counts as received
    FLUSHED_OFFSET = auto()  # off: what a follower has counts, on disk or not
    EPOCH_START = auto()  # off: a follower joins when it has reached the watermark
    AGREED_IN_SYNC = auto()  # off: the leader believes in the in-sync set that it has asked for


class Violation(AssertionError):
    pass


class Replica:
    def __init__(self, number: int, cluster: Cluster) -> None:
        self.number = number
        self.cluster = cluster
        self.disk = SimDisk()
        make_lasting_folder(self.disk, "/data")
        self.life = 0
        self.is_up = False
        self.start(clean=True)

    def start(self, *, clean: bool) -> None:
        self.life += 1
        self.is_up = True
        self.executor = HeldExecutor()
        settings = self.cluster.settings
        log = Log.open(self.disk, f"/data/{TP}", LogConfig.of(settings), now_ms=NOW_MS, clean=clean, topic_id=TOPIC_ID)
        producers = load_producers(self.disk, log, NOW_MS, clean=clean)
        membership = Membership(lambda: True, self, lambda: None)
        commits = GroupCommit(LoopThreads(self.executor))
        self.partition = Partition(TP, TOPIC_ID, log, settings, 0, commits, self.disk, producers, None, membership)
        self.partition.restore_watermark(0)  # the checkpoint was lost

    def ask(self, partition: Partition, followers: Mapping[int, int]) -> None:
        if partition is self.partition:
            self.cluster.on_ask(self, followers)

    def lose_power(self) -> None:
        self.is_up = False
        self.disk = self.disk.power_loss()

    def messages(self) -> list[tuple[int, int, bytes]]:
        """Offset, epoch and value of each."""
        found = []
        for batch in self.partition.batches():
            epoch = int.from_bytes(batch[12:16], "big")
            found += [(one.offset, epoch, one.value or b"") for one in decode_batch(batch)]
        return found


class Cluster:
    def __init__(self, *, durable: bool = False, off: Rule | None = None, in_sync: tuple[int, ...] = (1, 2, 3)) -> None:
        durability = "fsync" if durable else "page-cache"
        self.settings = parse({"clarion.durability": durability}, TopicSettings())
        self.is_durable = durable
        self.off = off
        self.state = Term(1, 1, (1, 2, 3), in_sync, 1)
        self.asked: dict[int, tuple[Term, Mapping[int, int]]] = {}
        self.acknowledged: dict[int, bytes] = {}
        self.written = 0
        self.replicas = {number: Replica(number, self) for number in (1, 2, 3)}
        for number in (1, 2, 3):
            self.learn(number)

    # What the cluster does

    def elect(self, number: int) -> None:
        """A leader out of the in-sync set; who is not there leaves it."""
        if number in self.state.in_sync and self.replicas[number].is_up:
            in_sync = tuple(one for one in self.state.in_sync if self.replicas[one].is_up)
            self._agree(leader=number, leader_epoch=self.state.leader_epoch + 1, in_sync=in_sync)

    def alter(self, number: int) -> None:
        """What a leader asked for reaches the store: compare and set."""
        known, followers = self.asked.pop(number, (None, {}))
        if known is None or known.partition_epoch != self.state.partition_epoch or self.state.leader != number:
            return
        here = [one for one, life in followers.items() if self._is_as_seen(one, life)]
        self._agree(in_sync=tuple(one for one in self.state.replicas if one == number or one in here))

    def _is_as_seen(self, follower: int, life: int) -> bool:
        replica = self.replicas[follower]
        return follower in self.state.in_sync or (replica.is_up and replica.life == life)

    def _agree(self, **changes: object) -> None:
        self.state = self.state._replace(**changes, partition_epoch=self.state.partition_epoch + 1)  # type: ignore[arg-type]

    def learn(self, number: int) -> None:
        """A replica hears what the cluster has agreed on."""
        replica, state = self.replicas[number], self.state
        if not replica.is_up:
            return
        partition = replica.partition
        if state.leader == number:
            is_waiting = self.off is not Rule.IN_SYNC_QUORUM
            partition.lead(state if is_waiting else state._replace(in_sync=(number,)), NOW_MS)
            if self.off is Rule.EPOCH_START:
                partition._leader._epoch_start = 0  # type: ignore[union-attr]
        else:
            if self.off is Rule.TRUNCATION_BY_EPOCH and state.leader_epoch > partition.leader_epoch:
                partition.log.truncate_to(partition.high_watermark.offset)
            partition.follow(state)
        self.check()

    def on_ask(self, replica: Replica, followers: Mapping[int, int]) -> None:
        known = replica.partition.state
        assert isinstance(known, Term)
        self.asked[replica.number] = (known, followers)
        if self.off is Rule.AGREED_IN_SYNC:
            in_sync = (replica.number, *followers)
            replica.partition.lead(known._replace(in_sync=in_sync, partition_epoch=known.partition_epoch + 1), NOW_MS)

    # What brokers and their clients do

    def write(self, number: int) -> None:
        partition = self.replicas[number].partition
        if not (self.replicas[number].is_up and partition.is_leader):
            return
        self.written += 1
        value = b"%d by %d" % (self.written, number)
        appended = partition.append(memoryview(encode_batch([(None, value, (), NOW_MS)])), NOW_MS)

        def on_commit(code: ErrorCode) -> None:
            if code is ErrorCode.NONE:
                self.acknowledged[appended.base_offset] = value

        if partition.when_committed(appended.last_offset, on_commit):
            on_commit(ErrorCode.NONE)
        self.check()

    def fetch(self, number: int, *, is_reply_lost: bool = False) -> None:
        """A follower fetches from the leader it knows, as `replica_fetches` and `fetchers` do it."""
        replica = self.replicas[number]
        follower = replica.partition.followed
        if not replica.is_up or follower is None or not self.replicas[follower.leader].is_up:
            return
        self._fetch(replica, self.replicas[follower.leader].partition, is_reply_lost)
        self.check()

    def _fetch(self, replica: Replica, leader: Partition, is_reply_lost: bool) -> None:
        partition = replica.partition
        at = partition.position
        if not leader.is_leader or leader.leader_epoch != at.leader_epoch:
            return
        if self.off is not Rule.TRUNCATION_BY_EPOCH:
            parted = leader.diverging_epoch(at.last_epoch, at.next_offset)
            if parted is not None:
                partition.cut_where_logs_part(*parted, NOW_MS)
                return
        if at.next_offset > leader.next_offset:
            partition.begin_anew(leader.start_offset, NOW_MS)
            return
        reads_to = leader.next_offset if self.off is Rule.WATERMARK_OF_WHAT_THEY_HAVE else at.next_offset
        flushed = at.next_offset if self.off is Rule.FLUSHED_OFFSET else at.flushed_offset
        leader.on_replica_fetch(replica.number, reads_to, NOW_MS, flushed_offset=flushed, life=replica.life)
        data = b"".join(one.read() for one in leader.read_as_replica(at.next_offset, 1 << 20))
        if not is_reply_lost:
            partition.append_fetched(memoryview(data), NOW_MS)
            partition.note_leader(leader.high_watermark.offset, leader.start_offset)

    def flush(self, number: int) -> None:
        replica = self.replicas[number]
        if replica.is_up:
            replica.partition.flush_soon()
            ticket = replica.partition.begin_flush()
            assert ticket is not None
            ticket.run()
            replica.partition.finish_flush(ticket)
        self.check()

    def wait_too_long(self, number: int) -> None:
        if self.replicas[number].is_up:
            self.replicas[number].partition.tick(NOW_MS + LAG_MS_MAX + 1)
        self.check()

    def crash(self, number: int) -> None:
        """The machine loses its power. Without durability it is in sync no longer, unless nobody else is."""
        replica = self.replicas[number]
        others = [one for one in self.state.in_sync if one != number and self.replicas[one].is_up]
        if not replica.is_up or (number in self.state.in_sync and not others):
            return
        replica.lose_power()
        self.asked.pop(number, None)
        in_sync = self.state.in_sync
        if not self.is_durable:
            in_sync = tuple(one for one in in_sync if one != number)
        if self.state.leader == number:
            self._agree(leader=others[0], leader_epoch=self.state.leader_epoch + 1, in_sync=in_sync)
        elif in_sync != self.state.in_sync:
            self._agree(in_sync=in_sync)

    def restart(self, number: int) -> None:
        if not self.replicas[number].is_up:
            self.replicas[number].start(clean=False)
            self.check()

    # What must hold at every moment

    def check(self) -> None:
        here = [one for one in self.replicas.values() if one.is_up]
        logs = {one.number: one.messages() for one in here}
        for one in here:
            watermark = one.partition.high_watermark.offset
            if watermark > one.partition.next_offset:
                raise Violation(f"the watermark of {one.number} lies behind its end")
            for other in here:
                below = min(watermark, other.partition.high_watermark.offset)
                if logs[one.number][:below] != logs[other.number][:below]:
                    raise Violation(f"{one.number} and {other.number} differ below their watermarks")
        leader = self.replicas[self.state.leader]
        if leader.is_up and leader.partition.leader_epoch == self.state.leader_epoch and leader.partition.is_leader:
            held = {offset: value for offset, _, value in logs[leader.number]}
            lost = {one: value for one, value in self.acknowledged.items() if held.get(one) != value}
            if lost:
                raise Violation(f"{leader.number} leads without {lost}")


def settle(cluster: Cluster) -> None:
    """Faults are over: everybody hears everything, and fetches until nothing changes."""
    for number in (1, 2, 3):
        cluster.restart(number)
    for _ in range(12):
        for number in (1, 2, 3):
            cluster.alter(number)
            cluster.learn(number)
            try:
                cluster.fetch(number)
            except KafkaError:
                pass
