"""InitProducerId v0-5: an id for an idempotent producer.

v2 flexible · v3 the producer's present id and epoch · v4 PRODUCER_FENCED · v5 TRANSACTION_ABORTABLE.

Without a transactional id every request gets a fresh id with epoch 0, whatever id the producer had before, as in Kafka:
an idempotent producer raises its epoch by itself. Left out: transactions. A transactional id is refused at once with an
error that clients take as final.
"""

from __future__ import annotations

from clarion.broker.apis.refusals import REFUSALS, refusal_of
from clarion.broker.authorizer import Operation
from clarion.broker.broker import Broker, RequestContext
from clarion.cluster import StoreError
from clarion.model.errors import ErrorCode
from clarion.wire.messages.logs import InitProducerIdRequest, InitProducerIdResponse


async def handle(broker: Broker, request: InitProducerIdRequest, context: RequestContext) -> InitProducerIdResponse:
    if request.transactional_id is not None:
        is_empty = request.transactional_id == ""
        return _refused(ErrorCode.INVALID_REQUEST if is_empty else ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    if (request.producer_id < 0) != (request.producer_epoch < 0):
        return _refused(ErrorCode.INVALID_REQUEST)
    try:
        broker.resolver.require_cluster(context.principal, Operation.IDEMPOTENT_WRITE)
        producer_id = await broker.new_producer_id()
    except StoreError:  # no block of ids to be had now: Kafka's word for it, after which producers ask again
        return _refused(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    except REFUSALS as error:
        return _refused(refusal_of(error, "producer id").code)
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)


def _refused(code: ErrorCode) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1)
