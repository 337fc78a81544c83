"""Groups as they are described: each is asked of its own coordinator, and its operations are added where asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from clarion.broker.apis.authorized_operations import GROUP_OPERATIONS
from clarion.broker.authorizer import Operation, ResourceKind
from clarion.broker.broker import Broker, RequestContext
from clarion.broker.group_service import Method
from clarion.model.errors import KafkaError
from clarion.wire.messages.groups import DescribedConsumerGroup, DescribedGroup
from clarion.wire.messages.share_groups import DescribedShareGroup

Described = TypeVar("Described", DescribedGroup, DescribedConsumerGroup, DescribedShareGroup)


async def describe(
    broker: Broker,
    group_ids: Sequence[str],
    context: RequestContext,
    kind: type[Described],
    method: Method,
    request_for: Callable[[str], Any],
    *,
    has_operations: bool,
) -> tuple[Described, ...]:
    """`method` is the coordinator's, and `request_for` makes what it is asked about one group."""
    found: list[Described] = []
    async for group_id in broker.turns.each(group_ids):
        try:
            response = await broker.groups.call(group_id, Operation.DESCRIBE, method, request_for(group_id), context)
        except KafkaError as error:
            found.append(kind(group_id=group_id, error_code=error.code, error_message=error.message or None))
            continue
        described: Described
        (described,) = response.groups
        if has_operations and not described.error_code:
            operations = broker.resolver.authorized(context.principal, ResourceKind.GROUP, group_id, GROUP_OPERATIONS)
            described = replace(described, authorized_operations=operations)
        found.append(described)
    return tuple(found)
