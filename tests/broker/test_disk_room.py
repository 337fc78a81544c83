"""A reserve of the disk: messages are refused before it is used up, and everything else goes on."""

from clarion.broker.config import Durability
from clarion.model.errors import ErrorCode
from tests.broker.disks import StoryDisk
from tests.broker.harness import running
from tests.broker.talk import batch
from tests.broker.test_group_service import commit, committed, find
from tests.broker.test_metrics import get, scrape

T0 = ("t", 0)
HOUR_MS = 3_600_000
NEVER = 1e6


class MeasuredDisk(StoryDisk):
    """A disk of which a story says how much is free."""

    free = 1_000_000

    def free_bytes(self, path: str) -> int:
        return self.free

    def total_bytes(self, path: str) -> int:
        return 1_000_000


def measured(tmp_path, disk, **more):
    settings = {"durability": Durability.PAGE_CACHE, "metrics_port": 0, "retention_check_seconds": NEVER, **more}
    return running(tmp_path, disk=disk, **settings)


async def look(node, disk, free):
    disk.free = free
    await node.server.housekeeping.watch_room()


async def test_messages_are_refused_below_the_reserve_and_all_else_goes_on(tmp_path):
    disk = MeasuredDisk()
    async with measured(tmp_path, disk) as node:
        await node.topic()
        assert (await node.client.produce({T0: batch(b"early")}))[T0].error_code == 0
        await find(node)
        await look(node, disk, 49_999)  # 5 % are 50,000
        refused = (await node.client.produce({T0: batch(b"late")}))[T0]
        assert refused.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert "49,999 bytes were free at the last look, 50,000 are kept in reserve" in refused.error_message
        assert (await node.client.fetch({T0: 0})).values() == [b"early"]
        assert await commit(node, 1) == 0
        assert await committed(node) == 1
        status, page = await get(node, "/readyz")
        assert (status, "the disk is nearly full" in page) == (503, True)
        numbers = await scrape(node)
        assert (numbers["clarion_disk_free_bytes"], numbers["clarion_disk_reserve_bytes"]) == (49_999, 50_000)
        await look(node, disk, 50_001)
        assert (await node.client.produce({T0: batch(b"late")}))[T0].error_code, "it does not change with every byte"
        await look(node, disk, 60_000)
        assert (await node.client.produce({T0: batch(b"again")}))[T0].error_code == 0
        assert (await get(node, "/readyz"))[0] == 200


async def test_a_burst_between_two_looks_does_not_get_at_the_reserve(tmp_path):
    disk = MeasuredDisk()
    async with measured(tmp_path, disk) as node:
        await node.topic()
        one = len(batch(bytes(1000)))
        await look(node, disk, 50_000 + 10 * one)
        codes = [(await node.client.produce({T0: batch(bytes(1000))}))[T0].error_code for _ in range(15)]
        assert codes == [0] * 10 + [ErrorCode.KAFKA_STORAGE_ERROR] * 5
        await look(node, disk, 50_000)
        assert (await get(node, "/readyz"))[0] == 503, "messages were refused, though the reserve is not touched"
        await look(node, disk, 50_000 + one)
        assert (await node.client.produce({T0: batch(bytes(1000))}))[T0].error_code == 0


async def test_a_broker_that_starts_on_a_full_disk_knows_it_before_the_first_message(tmp_path):
    disk = MeasuredDisk()
    disk.free = 10
    async with measured(tmp_path, disk, reserve_bytes=11) as node:
        await node.topic()
        assert (await node.client.produce({T0: batch(b"v")}))[T0].error_code == ErrorCode.KAFKA_STORAGE_ERROR
    disk.free = 1_000
    async with measured(tmp_path, disk, reserve_bytes=11) as node:
        assert (await node.client.produce({T0: batch(b"v")}))[T0].error_code == 0


async def test_an_idempotent_producer_keeps_its_order_over_a_refusal(tmp_path):
    disk = MeasuredDisk()

    def numbered(sequence):
        return batch(b"%d" % sequence, producer_id=7, producer_epoch=0, base_sequence=sequence)

    async with measured(tmp_path, disk) as node:
        await node.topic()
        await look(node, disk, 0)
        assert (await node.client.produce({T0: numbered(0)}))[T0].error_code == ErrorCode.KAFKA_STORAGE_ERROR
        await look(node, disk, 1_000_000)
        codes = [(await node.client.produce({T0: numbered(n)}))[T0].error_code for n in (1, 0, 1)]
        assert codes == [ErrorCode.KAFKA_STORAGE_ERROR, 0, 0]
        assert (await node.client.fetch({T0: 0})).values() == [b"0", b"1"]


async def test_what_may_go_goes_at_once_when_room_becomes_short(tmp_path):
    disk = MeasuredDisk()
    async with measured(tmp_path, disk) as node:
        await node.topic("by-size", retention_bytes="200")
        await node.topic("by-time", retention_ms=str(HOUR_MS), clarion_retention_grace_ms="0")
        for number in range(20):
            await node.client.produce({("by-size", 0): batch(b"%04d" % number * 10)})
        now = node.broker.clock.now_ms()
        await node.client.produce({("by-time", 0): batch(b"old" * 100, at=now - 2 * HOUR_MS)})
        assert sum(one.log.segment_count for one in node.broker.partitions) == 2, "only files that are being written"
        await look(node, disk, 0)
        assert node.partition("by-time").log.size_bytes == 0
        assert node.partition("by-size").log.size_bytes <= 200
        assert not list(tmp_path.glob("*/*.deleted")), "without the delay that they have otherwise"
