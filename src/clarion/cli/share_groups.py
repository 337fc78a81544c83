"""Share groups, for `clarion group` and `clarion top`: which there are, who is in them, where they are; moving them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from clarion.cli.errors import CliError
from clarion.cli.link import Link
from clarion.cli.offsets import Place
from clarion.cli.own_channel import Channels, can_ask, with_channels
from clarion.model.errors import ErrorCode

if TYPE_CHECKING:
    from clarion.net.channel import Channel

TYPE: Final = "share"


class SharePosition(NamedTuple):
    start: int | None  # the first record that is not done; None until somebody has read
    lag: int | None  # records that are not done; None where the broker cannot tell


class ShareGroupView(NamedTuple):
    group: str
    state: str
    assignor: str
    members: list[dict[str, Any]]
    positions: dict[Place, SharePosition]

    @property
    def lag(self) -> int:
        return sum(one.lag or 0 for one in self.positions.values())


def share_groups(link: Link) -> list[str]:
    return with_channels(link, _names) if can_ask(link) else []


def share_group_views(link: Link, names: list[str]) -> list[ShareGroupView]:
    """Those of them that are there."""

    async def look(channels: Channels) -> list[ShareGroupView]:
        found = [await _view(channels, name) for name in names]
        return [one for one in found if one is not None]

    return with_channels(link, look)


def share_group_view(link: Link, group: str) -> ShareGroupView | None:
    """None if there is no such share group, or no way to ask."""
    return None if not can_ask(link) else next(iter(share_group_views(link, [group])), None)


def move_share_group(link: Link, group: str, targets: Mapping[Place, int]) -> None:
    with_channels(link, lambda channels: _move(channels, group, targets))


async def _names(channels: Channels) -> list[str]:
    from clarion.wire.apis import LIST_GROUPS, METADATA
    from clarion.wire.messages.groups import ListGroupsRequest
    from clarion.wire.messages.metadata import MetadataRequest

    cluster = await (await channels.any()).ask(METADATA, MetadataRequest(topics=()), newest=12)
    names: set[str] = set()
    for broker in cluster.brokers:
        channel = await channels.to(broker.host, broker.port)
        if not _knows_shares(channel):
            continue
        answer = await channel.ask(LIST_GROUPS, ListGroupsRequest(types_filter=(TYPE,)))
        _check(answer.error_code, "list share groups")
        names |= {one.group_id for one in answer.groups}
    return sorted(names)


def _knows_shares(channel: Channel) -> bool:
    from clarion.wire.apis import APIS, SHARE_GROUP_DESCRIBE

    return channel.versions.knows(APIS[SHARE_GROUP_DESCRIBE])


async def _view(channels: Channels, group: str) -> ShareGroupView | None:
    from clarion.wire.apis import DESCRIBE_SHARE_GROUP_OFFSETS, SHARE_GROUP_DESCRIBE
    from clarion.wire.messages.share_groups import (
        DescribeShareGroupOffsetsRequest,
        DescribeShareGroupOffsetsRequestGroup,
        ShareGroupDescribeRequest,
    )

    coordinator = await _coordinator(channels, group)
    if not _knows_shares(coordinator):
        return None
    (told,) = (await coordinator.ask(SHARE_GROUP_DESCRIBE, ShareGroupDescribeRequest(group_ids=(group,)))).groups
    if told.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
        return None
    _check(told.error_code, f"group {group}", told.error_message)
    asked = DescribeShareGroupOffsetsRequest(groups=(DescribeShareGroupOffsetsRequestGroup(group_id=group),))
    (places,) = (await coordinator.ask(DESCRIBE_SHARE_GROUP_OFFSETS, asked)).groups
    _check(places.error_code, f"group {group}", places.error_message)
    positions = {
        (topic.topic_name, one.partition_index): SharePosition(_told(one.start_offset), _told(one.lag))
        for topic in places.topics
        for one in topic.partitions
    }
    members = [_member(one) for one in told.members]
    return ShareGroupView(group, told.group_state.lower(), told.assignor_name, members, positions)


def _member(one: Any) -> dict[str, Any]:
    return {
        "member": one.member_id,
        "client": one.client_id,
        "host": one.client_host,
        "instance": None,
        "places": [(each.topic_name, at) for each in one.assignment.topic_partitions for at in each.partitions],
    }


def _told(number: int) -> int | None:
    return number if number >= 0 else None


async def _move(channels: Channels, group: str, targets: Mapping[Place, int]) -> None:
    from clarion.wire.apis import ALTER_SHARE_GROUP_OFFSETS
    from clarion.wire.messages.share_groups import (
        AlterShareGroupOffsetsRequest,
        AlterShareGroupOffsetsRequestPartition,
        AlterShareGroupOffsetsRequestTopic,
    )

    topics: dict[str, list[AlterShareGroupOffsetsRequestPartition]] = {}
    for (topic, partition), offset in targets.items():
        wanted = AlterShareGroupOffsetsRequestPartition(partition_index=partition, start_offset=offset)
        topics.setdefault(topic, []).append(wanted)
    asked = [
        AlterShareGroupOffsetsRequestTopic(topic_name=topic, partitions=tuple(partitions))
        for topic, partitions in topics.items()
    ]
    coordinator = await _coordinator(channels, group)
    answer = await coordinator.ask(
        ALTER_SHARE_GROUP_OFFSETS, AlterShareGroupOffsetsRequest(group_id=group, topics=tuple(asked))
    )
    _check(answer.error_code, f"reset {group}", answer.error_message)
    for topic_told in answer.responses:
        for one in topic_told.partitions:
            _check(one.error_code, f"reset {group}: {topic_told.topic_name}-{one.partition_index}", one.error_message)


async def _coordinator(channels: Channels, group: str) -> Channel:
    from clarion.wire.apis import FIND_COORDINATOR
    from clarion.wire.messages.metadata import FindCoordinatorRequest

    asked = FindCoordinatorRequest(key=group, key_type=0)
    found = await (await channels.any()).ask(FIND_COORDINATOR, asked, newest=3)
    _check(found.error_code, f"group {group}", found.error_message)
    return await channels.to(found.host, found.port)


def _check(code: int, what: str, message: str | None = None) -> None:
    if code:
        raise CliError(f"{what}: {message or ErrorCode(code).name}")
