"""Random requests to one broker, with restarts and kills in between: it holds what it has answered, and nothing else.

Few names, so that they come again: topics with their settings and messages, idempotent producers who repeat themselves,
deleted records, compaction, groups' offsets, settings of brokers and groups. A list of what was answered is the model.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

import pytest

from clarion.broker.config import Durability, ListenerConfig
from clarion.broker.server import BrokerServer
from clarion.broker.settings import broker_config
from clarion.model.errors import ErrorCode
from clarion.wire.batch import read_header
from clarion.wire.messages.configs import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalConfig,
    IncrementalConfigsResource,
)
from clarion.wire.messages.groups import DeleteGroupsRequest
from clarion.wire.messages.topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from clarion.wire.records import decode_batch, encode_batch
from tests.broker import group_words
from tests.broker.harness import Client, Node, until
from tests.broker.kept import settle
from tests.broker.talk import split

NAMES, GROUPS, KEYS = ("a", "b", "c-0"), ("g", "h"), (b"k", b"l", b"m")
PRODUCERS = (1_000_001, 1_000_002)
NEVER = 1e6
BY_THE_STORY = {"retention_check_seconds": NEVER, "compaction_check_seconds": NEVER, "checkpoint_seconds": NEVER}
TOPIC, BROKER, GROUP = 2, 4, 32
SET, DELETE = 0, 1
COMPACTED = {"cleanup.policy": "compact,delete", "min.cleanable.dirty.ratio": "0", "segment.bytes": "1024"}
KINDS = ({}, {"segment.bytes": "1024"}, COMPACTED, {"compression.type": "gzip"})
SETTINGS = {
    TOPIC: (NAMES, ("retention.ms", ("-1", "900000000"))),
    BROKER: (("", "1"), ("log.segment.bytes", ("2048", "4096"))),
    GROUP: (GROUPS, ("consumer.session.timeout.ms", ("50000", "51000"))),
}


@dataclass
class Sent:
    """What an idempotent producer has written last."""

    next_sequence: int
    batches: list[tuple[bytes, int]] = field(default_factory=list)  # with the offsets that were answered


@dataclass
class Partition:
    start: int = 0
    records: list[tuple[bytes | None, bytes | None, int]] = field(default_factory=list)
    sent: dict[int, Sent] = field(default_factory=dict)
    is_compacted: bool = False


@dataclass
class Topic:
    id: UUID
    settings: dict[str, str]
    partitions: list[Partition]


class Life:
    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.random = folder, random.Random(seed)
        self.topics: dict[str, Topic] = {}
        self.offsets: dict[str, dict[tuple[str, int], int]] = {}
        self.settings: dict[tuple[int, str], dict[str, str]] = {}

    async def start(self) -> None:
        config = broker_config(
            str(self.folder),
            listeners=(ListenerConfig(port=0),),
            durability=Durability.PAGE_CACHE,
            offsets_partitions=2,
            **BY_THE_STORY,
        )
        self.server = BrokerServer(config)
        await self.server.start()
        self.client = await Client.connect(*self.server.addresses[0])
        await until(lambda: all(shard.is_loaded for shard in self.server.groups.shards))

    async def end(self, *, is_killed: bool) -> None:
        self.client.close()
        await (self.server.kill() if is_killed else self.server.stop(drain_seconds=0))

    async def live(self, steps: int) -> None:
        await self.start()
        often = [self.produce] * 20 + [self.create, self.commit] * 5 + [self.alter] * 4 + [self.delete_records] * 3
        seldom = [self.delete, self.grow, self.replace_settings, self.delete_group, self.clean, self.begin_anew]
        for _ in range(steps):
            await self.random.choice(often + 2 * seldom)()
        await self.begin_anew()
        await self.end(is_killed=False)

    async def begin_anew(self) -> None:
        await self.end(is_killed=self.random.random() < 0.5)
        await self.start()
        await self.compare()

    # Requests

    async def create(self) -> None:
        name, count, settings = self.random.choice(NAMES), self.random.randint(1, 3), self.random.choice(KINDS)
        configs = tuple(CreatableTopicConfig(name=key, value=value) for key, value in settings.items())
        asked = CreatableTopic(name=name, num_partitions=count, replication_factor=1, assignments=(), configs=configs)
        request = CreateTopicsRequest(topics=(asked,), timeout=1000, validate_only=False)
        (answer,) = (await self.client.ask(request, 7)).topics
        assert (answer.error_code == ErrorCode.TOPIC_ALREADY_EXISTS) == (name in self.topics)
        if answer.error_code == 0:
            self.topics[name] = Topic(answer.topic_id, dict(settings), [Partition() for _ in range(count)])

    async def delete(self) -> None:
        name = self.random.choice(NAMES)
        asked = DeleteTopicState(name=name, topic_id=UUID(int=0))
        (answer,) = (await self.client.ask(DeleteTopicsRequest(topics=(asked,), timeout=1000), 6)).responses
        assert (answer.error_code == 0) == (self.topics.pop(name, None) is not None)
        for offsets in self.offsets.values():
            for at in [at for at in offsets if at[0] == name]:
                del offsets[at]

    async def grow(self) -> None:
        name, count = self.random.choice(NAMES), self.random.randint(2, 5)
        asked = CreatePartitionsTopic(name=name, count=count, assignments=None)
        request = CreatePartitionsRequest(topics=(asked,), timeout=1000, validate_only=False)
        (answer,) = (await self.client.ask(request, 3)).results
        partitions = self.topics[name].partitions if name in self.topics else []
        assert (answer.error_code == 0) == (0 < len(partitions) < count)
        if answer.error_code == 0:
            partitions += [Partition() for _ in range(count - len(partitions))]

    async def alter(self) -> None:
        kind = self.random.choice(list(SETTINGS))
        names, (setting, values) = SETTINGS[kind]
        name, value, what = self.random.choice(names), self.random.choice(values), self.random.choice((SET, DELETE))
        change = IncrementalConfig(name=setting, config_operation=what, value=value if what == SET else None)
        resource = IncrementalConfigsResource(resource_type=kind, resource_name=name, configs=(change,))
        request = IncrementalAlterConfigsRequest(resources=(resource,), validate_only=False)
        (answer,) = (await self.client.ask(request, 1)).responses
        assert (answer.error_code == 0) == (kind != TOPIC or name in self.topics)
        if answer.error_code == 0:
            known = self.topics[name].settings if kind == TOPIC else self.settings.setdefault((kind, name), {})
            known.pop(setting, None)
            known |= {setting: value} if what == SET else {}

    async def replace_settings(self) -> None:
        """The old request: what it does not name goes."""
        name = self.random.choice(NAMES)
        config = AlterableConfig(name="segment.bytes", value="2000")
        resource = AlterConfigsResource(resource_type=TOPIC, resource_name=name, configs=(config,))
        request = AlterConfigsRequest(resources=(resource,), validate_only=False)
        (answer,) = (await self.client.ask(request, 2)).responses
        assert (answer.error_code == 0) == (name in self.topics)
        if name in self.topics:
            self.topics[name].settings = {"segment.bytes": "2000"}

    def some_partition(self) -> tuple[str, int, Partition] | None:
        if not self.topics:
            return None
        name = self.random.choice(sorted(self.topics))
        index = self.random.randrange(len(self.topics[name].partitions))
        return name, index, self.topics[name].partitions[index]

    async def produce(self) -> None:
        if (found := self.some_partition()) is None:
            return
        name, index, partition = found
        now_ms = self.server.broker.clock.now_ms()
        at = self.random.choice((now_ms, now_ms - 10**9, now_ms + 1000, 0, -1))
        values = [
            self.random.choice((None, b"v" * self.random.randint(0, 300))) for _ in range(self.random.randint(1, 4))
        ]
        records = [(self.random.choice(KEYS), value, (), at) for value in values]
        producer = self.random.choice((None, *PRODUCERS))
        sent = partition.sent.get(producer or -1)
        if sent is not None and self.random.random() < 0.4:
            await self._repeat((name, index), partition, sent)
            return
        how = {}
        if producer is not None:
            sent = partition.sent.setdefault(producer, sent or Sent(self.random.choice((0, 2**31 - 3))))
            how = {"producer_id": producer, "producer_epoch": 0, "base_sequence": sent.next_sequence}
        data = bytes(encode_batch(records, compression=self.random.choice((0, 1, 4)), **how))
        answer = (await self.client.produce({(name, index): data}))[name, index]
        assert (answer.error_code, answer.base_offset) == (0, len(partition.records))
        partition.records += [(key, value, timestamp) for key, value, _, timestamp in records]
        if sent is not None:
            sent.next_sequence = (sent.next_sequence + len(records)) & 0x7FFFFFFF
            sent.batches = [*sent.batches, (data, answer.base_offset)][-5:]

    async def _repeat(self, place: tuple[str, int], partition: Partition, sent: Sent) -> None:
        data, offset = self.random.choice(sent.batches)
        answer = (await self.client.produce({place: data}))[place]
        # The last batch is known for ever, those before it as long as the log has them.
        may_be_gone = data is not sent.batches[-1][0] and (partition.is_compacted or offset < partition.start)
        if not (may_be_gone and answer.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER):
            assert (answer.error_code, answer.base_offset) == (0, offset)

    async def delete_records(self) -> None:
        if (found := self.some_partition()) is None:
            return
        name, index, partition = found
        offset = self.random.randint(0, len(partition.records))
        asked = DeleteRecordsPartition(partition_index=index, offset=offset)
        request = DeleteRecordsRequest(topics=(DeleteRecordsTopic(name=name, partitions=(asked,)),), timeout=1000)
        (answer,) = (await self.client.ask(request, 2)).topics[0].partitions
        partition.start = max(partition.start, offset)
        assert (answer.error_code, answer.low_watermark) == (0, partition.start)

    async def commit(self) -> None:
        group, name, index = self.random.choice(GROUPS), self.random.choice(NAMES), self.random.randint(0, 2)
        offset = self.random.randint(0, 1000)
        await group_words.find(self.client, group)
        code = await group_words.commit(self.client, offset, group, name, index)
        assert (code == 0) == (name in self.topics and index < len(self.topics[name].partitions))
        if code == 0:
            self.offsets.setdefault(group, {})[name, index] = offset

    async def delete_group(self) -> None:
        group = self.random.choice(GROUPS)
        (answer,) = (await self.client.ask(DeleteGroupsRequest(groups_names=(group,)), 2)).results
        assert answer.error_code == 0 or not self.offsets.get(group)
        self.offsets.pop(group, None)

    async def clean(self) -> None:
        for partition in list(self.server.broker.partitions):
            partition.roll(self.server.broker.clock.now_ms())
            partition.flush_soon()
        await settle(Node(self.server, self.client))
        for topic in self.topics.values():
            for partition in topic.partitions:
                partition.is_compacted |= "compact" in topic.settings.get("cleanup.policy", "")
        await self.server.housekeeping.compact()
        await self.server.housekeeping.retain()
        await self.server.housekeeping.save_checkpoints()

    # What it holds

    async def compare(self) -> None:
        broker = self.server.broker
        assert {name: one.id for name, one in broker.image.topics.items() if name in NAMES} == {
            name: topic.id for name, topic in self.topics.items()
        }
        for name, topic in self.topics.items():
            known = broker.image.topics[name]
            assert (dict(known.overrides), known.partition_count) == (topic.settings, len(topic.partitions))
            for index, partition in enumerate(topic.partitions):
                await self._compare_messages(name, index, partition)
        for group in GROUPS:
            committed = {tuple(at): offset for one, at, offset in self.server.groups.committed() if one == group}
            assert committed == self.offsets.get(group, {})
        for (kind, name), settings in self.settings.items():
            assert dict(broker.settings.get("broker" if kind == BROKER else "group", name)) == settings

    async def _compare_messages(self, name: str, index: int, partition: Partition) -> None:
        wanted = dict(list(enumerate(partition.records))[partition.start :])
        found: dict[int, tuple[bytes | None, bytes | None, int]] = {}
        offset = partition.start
        while offset < len(partition.records):
            size = self.random.choice((100, 5000, 10**6))
            answer = await self.client.fetch({(name, index): offset}, partition_max_bytes=size)
            batches = split(answer.records(name, index))
            records = [record for one in batches for record in decode_batch(one) if record.offset >= offset]
            found |= {one.offset: (one.key, one.value, one.timestamp) for one in records}
            offset = read_header(batches[-1]).next_offset
        if partition.is_compacted:
            newest = {key: offset for offset, (key, _, _) in wanted.items()}
            kept = {offset for offset in newest.values() if wanted[offset][1] is not None}
            assert kept <= found.keys() <= wanted.keys()
            wanted = {offset: wanted[offset] for offset in found}
        assert found == wanted


async def test_a_hundred_requests_with_restarts_between(tmp_path):
    await Life(tmp_path, seed=1).live(100)


@pytest.mark.campaign
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(2, 12))
async def test_a_thousand_requests_with_restarts_between(tmp_path, seed):
    await Life(tmp_path, seed).live(1_000)
