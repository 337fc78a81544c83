"""Every codec with the worst that is legal in it: written, kept, searched by time, and nobody is held up."""

import pytest

from clarion.broker.config import Durability
from clarion.wire.compression import Codec
from clarion.wire.messages.logs import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from tests.broker.bombs import MESSAGE_BYTES_MAX, worst
from tests.broker.harness import running
from tests.loop_turns import watched_turns

T0 = ("t", 0)


def by_time(timestamp: int) -> ListOffsetsRequest:
    asked = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
    return ListOffsetsRequest(replica_id=-1, topics=(ListOffsetsTopic(name="t", partitions=(asked,)),))


# In a campaign all of them; every codec once, and both policies, in each run.
EVERY = [(codec, policy) for codec in Codec for policy in ("delete", "compact")]
ALWAYS = [(codec, "delete" if codec % 2 else "compact") for codec in Codec]


@pytest.mark.parametrize(
    ("codec", "policy"),
    [*ALWAYS, *(pytest.param(*one, marks=pytest.mark.campaign) for one in EVERY if one not in ALWAYS)],
)
async def test_the_worst_message_of_every_codec_holds_up_nobody(tmp_path, codec, policy):
    bombs = dict(worst(codec))
    assert max(map(len, bombs.values())) < MESSAGE_BYTES_MAX
    async with running(tmp_path, durability=Durability.PAGE_CACHE) as node:
        await node.topic(cleanup_policy=policy)
        for name, bomb in bombs.items():
            async with watched_turns(f"{codec.name} of {name}"):
                await node.client.produce({T0: bomb}, version=9)
        if policy == "delete":
            assert node.partition().next_offset >= len(bombs), "kept as they came"
        for timestamp in (1, -3):
            async with watched_turns(f"a search for {timestamp}"):
                await node.ask(by_time(timestamp), 7)
