"""What the APIs of share state (83 to 87) have in common: who may ask, and that each share-partition is answered alone.

Only brokers ask: a request carries the secret of the broker's session, and its epoch, as a replica's fetch does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from clarion.broker.broker import Broker
from clarion.groups.names import check_names
from clarion.model.errors import ErrorCode, KafkaError
from clarion.queues.state_coordinator import StateReply, StateRequest
from clarion.queues.state_records import ShareKey


async def ask_each(
    broker: Broker,
    request: Any,
    asked: Callable[[ShareKey, Any], StateRequest],
    topic_result: type[Any],
    partition_result: type[Any],
    told: Callable[[StateReply], dict[str, object]] = lambda _: {},
) -> tuple[Any, ...]:
    """`asked`: from a partition of the request to what the coordinator is asked; `told`: from its reply to fields."""
    results = []
    for topic in request.topics:
        partitions = []
        async for one in broker.turns.each(topic.partitions):
            fields: dict[str, object]
            try:
                check_sender(broker, request)
                check_names(request.group_id)
                key = ShareKey(request.group_id, topic.topic_id, one.partition)
                fields = told(await broker.shares.states.ask_here(asked(key, one)))
            except KafkaError as error:
                fields = {"error_code": error.code, "error_message": error.message or error.code.name}
            partitions.append(partition_result(partition=one.partition, **fields))
        results.append(topic_result(topic_id=topic.topic_id, partitions=tuple(partitions)))
    return tuple(results)


def check_sender(broker: Broker, request: Any) -> None:
    is_broker = broker.is_broker
    if is_broker is None or not is_broker(request.broker_id, request.broker_epoch, request.secret):
        raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "only the brokers of a cluster keep share state")
