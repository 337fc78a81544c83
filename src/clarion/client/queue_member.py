"""Membership in a share group: heard of by heartbeats, told which partitions to read."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Final
from uuid import UUID

from clarion.client.broker_links import BrokerLinks
from clarion.client.errors import ClarionError, NotConnected, Unsupported, refusal
from clarion.model.errors import ErrorCode
from clarion.net.channel import ChannelLostError, ChannelUnusableError
from clarion.net.dialogue import Backoff
from clarion.wire.apis import SHARE_GROUP_HEARTBEAT
from clarion.wire.messages.share_groups import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse
from clarion.world import SystemRandomness

log = logging.getLogger("clarion.client")

_JOIN_EPOCH, _LEAVE_EPOCH = 0, -1
_FIRST_INTERVAL_SECONDS: Final = 5.0
_BACKOFF_SECONDS: Final = (0.05, 1.0)
_WAITING_SECONDS: Final = (0.05, 5.0)  # for the first partitions: a group that is new, or a topic, is soon ready
_LEAVE_SECONDS: Final = 5.0  # whoever cannot say good-bye is missed after the session's time
_AGAIN: Final = {
    *(ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
    *(ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NETWORK_EXCEPTION, ErrorCode.UNKNOWN_SERVER_ERROR),
}
_FORGOTTEN: Final = {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH}

Assigned = Callable[[Mapping[UUID, Iterable[int]]], None]


class QueueMember:
    def __init__(
        self, links: BrokerLinks, group: str, member_id: str, topics: tuple[str, ...], on_assigned: Assigned
    ) -> None:
        self._links = links
        self._group = group
        self._member_id = member_id
        self._topics = topics
        self._on_assigned = on_assigned
        self._epoch = _JOIN_EPOCH
        self._interval_seconds = _FIRST_INTERVAL_SECONDS
        self._coordinator: int | None = None
        self._has_partitions = False
        self._waiting = Backoff(*_WAITING_SECONDS, SystemRandomness())

    async def join(self) -> None:
        """Until the group has taken the member in, or has said no."""
        backoff = Backoff(*_BACKOFF_SECONDS, SystemRandomness())
        deadline = asyncio.get_running_loop().time() + self._links.settings.timeout_ms / 1000
        while True:
            try:
                if await self._beat():
                    return
            except NotConnected:
                if asyncio.get_running_loop().time() > deadline:
                    raise
            await asyncio.sleep(backoff.failed())

    async def stay(self, fail: Callable[[ClarionError], None]) -> None:
        backoff = Backoff(*_BACKOFF_SECONDS, SystemRandomness())
        while True:
            await asyncio.sleep(self._interval_seconds if self._has_partitions else self._waiting.failed())
            while True:
                try:
                    if await self._beat():
                        backoff.succeeded()
                        break
                except NotConnected as error:
                    log.debug("heartbeat failed: group %s, reason %s", self._group, str(error))
                except ClarionError as error:
                    fail(error)
                    return
                await asyncio.sleep(backoff.failed())

    async def leave(self) -> None:
        if self._epoch == _JOIN_EPOCH or self._coordinator is None:
            return
        request = ShareGroupHeartbeatRequest(group_id=self._group, member_id=self._member_id, member_epoch=_LEAVE_EPOCH)
        try:
            async with asyncio.timeout(_LEAVE_SECONDS):
                await self._links.ask(self._coordinator, SHARE_GROUP_HEARTBEAT, request)
        except (TimeoutError, ChannelLostError) as error:
            log.debug("left without good bye: group %s, reason %s", self._group, repr(error))

    async def _beat(self) -> bool:
        """Whether the group has heard it; False is worth another try, after a pause."""
        is_new = self._epoch == _JOIN_EPOCH
        request = ShareGroupHeartbeatRequest(
            group_id=self._group,
            member_id=self._member_id,
            member_epoch=self._epoch,
            subscribed_topic_names=self._topics if is_new else None,
            knows_filters=True,
        )
        try:
            if self._coordinator is None:
                self._coordinator = await self._links.coordinator(self._group)
            response: ShareGroupHeartbeatResponse
            response = await self._links.ask(self._coordinator, SHARE_GROUP_HEARTBEAT, request)
        except ChannelLostError:
            self._coordinator = None
            return False
        except ChannelUnusableError as error:
            raise Unsupported(f"queues cannot be read here: {error}") from error
        except ClarionError as error:
            if error.code in _AGAIN and not isinstance(error, NotConnected):
                return False
            raise
        return self._heard(response)

    def _heard(self, response: ShareGroupHeartbeatResponse) -> bool:
        if response.error_code in _FORGOTTEN:
            self._epoch = _JOIN_EPOCH
            return False
        if response.error_code in _AGAIN:
            self._coordinator = None
            return False
        if response.error_code:
            raise refusal(response.error_code, f"join queue {self._group!r}", response.error_message)
        self._epoch = response.member_epoch
        self._interval_seconds = response.heartbeat_interval / 1000 or _FIRST_INTERVAL_SECONDS
        if response.assignment is not None:
            assigned = {one.topic_id: one.partitions for one in response.assignment.topic_partitions}
            self._has_partitions = bool(assigned)
            self._on_assigned(assigned)
        elif not self._has_partitions:
            self._on_assigned({})  # still nothing: it may be seen why
        return True
