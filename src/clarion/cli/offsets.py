"""Where partitions begin and end, and which offset belongs to a moment: one request for many partitions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from clarion.cli.link import Link, admin_api, result_of

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

Place = tuple[str, int]  # topic and partition


def start_offsets(admin: AdminClient, link: Link, places: Sequence[Place]) -> dict[Place, int]:
    return _offsets(admin, link, places, admin_api().OffsetSpec.earliest())


def end_offsets(admin: AdminClient, link: Link, places: Sequence[Place]) -> dict[Place, int]:
    """The first offset not yet written (to readers: not yet committed)."""
    return _offsets(admin, link, places, admin_api().OffsetSpec.latest())


def offsets_at(admin: AdminClient, link: Link, places: Sequence[Place], time_ms: int) -> dict[Place, int]:
    """The first offset at or after a moment; the partition's end where nothing is that young."""
    found = _offsets(admin, link, places, admin_api().OffsetSpec.for_timestamp(max(time_ms, 0)))
    later = [place for place in places if found[place] < 0]
    return {**found, **end_offsets(admin, link, later)}


def all_partitions(topic: Any) -> list[Place]:
    """Every partition of a topic's description."""
    return [(topic.name, each.id) for each in topic.partitions]


def _offsets(admin: AdminClient, link: Link, places: Iterable[Place], spec: Any) -> dict[Place, int]:
    from confluent_kafka import TopicPartition

    wanted = {TopicPartition(topic, partition): spec for topic, partition in places}
    if not wanted:
        return {}
    futures = admin.list_offsets(wanted)
    return {
        (place.topic, place.partition): result_of(future, link, f"offsets of {place.topic}-{place.partition}").offset
        for place, future in futures.items()
    }
