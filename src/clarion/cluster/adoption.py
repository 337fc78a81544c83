"""What a single broker's registry says becomes the beginning of a cluster's.

All but what is about the broker's own presence is copied: topics with their ids, epochs, settings, producer ids. The
cluster's id comes last, so that a copy which was interrupted is known as one, and made again. So is one that is
complete, as long as no broker has joined: whatever came between, the broker may have gone on alone since.
"""

from __future__ import annotations

from collections.abc import Iterator

from clarion.cluster.coordination import CoordinationStore, Delete, Entry, Put, StoreError, in_transactions
from clarion.cluster.counters import BROKER_EPOCH
from clarion.cluster.image import ClusterImage
from clarion.cluster.schema import (
    BROKERS,
    CLUSTER_ID,
    CONTROLLER,
    LIVES,
    UNSAID,
    PartitionState,
    partition_key,
    write_partition,
)

_OWN = (BROKERS, LIVES, CONTROLLER)
_ADOPTED = "adopted"  # the broker's last life that the copy knows of


class NotEmptyError(StoreError):
    """There is a cluster already."""


class NoClusterError(StoreError):
    """The registry is new, or not a broker's: there is nothing in it that could be adopted."""


async def check_source(source: CoordinationStore) -> None:
    """Before anything is made of it. NoClusterError."""
    if await source.get(CLUSTER_ID) is None:
        raise NoClusterError("its registry is empty; put the right one in its place")


async def adopt_registry(source: CoordinationStore, target: CoordinationStore, node_id: int) -> ClusterImage:
    """Returns what was copied. NotEmptyError: the target is another cluster's, or has begun without all of this."""
    content = await source.range("")
    image, entries = ClusterImage.of(content), {one.key: one.value for one in content.entries}
    there = {one.key: one.value for one in (await target.range("")).entries}
    known, last_life = there.get(CLUSTER_ID), entries.get(BROKER_EPOCH, b"")
    if known is not None:
        if known.decode() != image.cluster_id:
            raise NotEmptyError(f"a cluster {known.decode()} is there already")
        if any(key.startswith(LIVES) for key in there):
            if there.get(_ADOPTED, last_life) != last_life:
                raise NotEmptyError("the cluster has begun, and this broker was started alone since it was adopted")
            return image
        await target.transact((), [Delete(CLUSTER_ID)])
    copied = {key: value for key, value in entries.items() if not key.startswith((*_OWN, CLUSTER_ID))}
    copied |= {one.key: one.value for one in _unsaid(image, node_id, content.entries)}
    stale = [Delete(key) for key in there if key not in copied and not key.startswith((*_OWN, CLUSTER_ID))]
    for part in in_transactions([*(Put(key, value) for key, value in copied.items()), *stale]):
        await target.transact((), part)
    await target.transact((), [Put(_ADOPTED, last_life), Put(CLUSTER_ID, image.cluster_id.encode())])
    return image


def _unsaid(image: ClusterImage, node_id: int, entries: tuple[Entry, ...]) -> Iterator[Put]:
    """Of partitions of which older versions said nothing: the broker led them in the epoch of its life."""
    epoch = next((int(one.value) for one in entries if one.key == BROKER_EPOCH), 0)
    here = (node_id,)
    for topic in image.topics.values():
        for index, state in enumerate(topic.partitions):
            if state is UNSAID:
                said = PartitionState(node_id, epoch, here, here)
                yield Put(partition_key(topic.id, index), write_partition(said))
