"""UnregisterBroker v0: forget a broker that will not come back.

What the cluster knows of a broker that is away is its last life, by which it is told apart from an empty disk under the
same id, and its settings. So it is forgotten only when no replica is assigned to it any more; Kafka forgets it at once,
and leaves replicas on a broker that does not exist. One that runs is refused as well: it would be back in a moment.
"""

from __future__ import annotations

from clarion.broker.apis.refusals import REFUSALS, refusal_of
from clarion.broker.authorizer import Operation
from clarion.broker.broker import Broker, RequestContext
from clarion.broker.dynamic_settings import BROKER
from clarion.model.errors import ErrorCode, KafkaError
from clarion.wire.messages.controller import UnregisterBrokerRequest, UnregisterBrokerResponse


async def handle(broker: Broker, request: UnregisterBrokerRequest, context: RequestContext) -> UnregisterBrokerResponse:
    broker.resolver.require_cluster(context.principal, Operation.ALTER)
    try:
        await _forget(broker, request.broker_id)
    except REFUSALS as error:
        code, message = refusal_of(error, f"broker {request.broker_id}")
        return UnregisterBrokerResponse(error_code=code, error_message=message)
    return UnregisterBrokerResponse()


async def _forget(broker: Broker, broker_id: int) -> None:
    image = broker.image
    if broker_id in image.brokers:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Broker {broker_id} is running. Stop it first.")
    held = sum(broker_id in state.replicas for topic in image.topics.values() for state in topic.partitions)
    if held:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"Broker {broker_id} is away, and {held} partitions still have a replica there. They get another one when "
            "it has been away for clarion.replica.replace.after.ms; or reassign them.",
        )
    if broker.node is None or not await broker.node.forget(broker_id):
        raise KafkaError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"Broker ID {broker_id} is not registered.")
    await broker.settings.change(BROKER, str(broker_id), lambda _: {})
