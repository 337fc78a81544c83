"""DescribeCluster v0-2: who is there.

v1 endpoint type (1 brokers, 2 controllers) · v2 fenced brokers.

A broker that is fenced is none: it has lost its lease, and nobody is told of it. Every broker listens for clients only:
a question for controllers is refused, as a Kafka broker does.
"""

from __future__ import annotations

from typing import Final

from clarion.broker.apis.authorized_operations import CLUSTER_OPERATIONS, NOT_ASKED_FOR
from clarion.broker.authorizer import THE_CLUSTER, ResourceKind
from clarion.broker.broker import Broker, RequestContext
from clarion.cluster import BrokerRegistration
from clarion.model.errors import ErrorCode
from clarion.wire.messages.metadata import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)

BROKERS: Final = 1
CONTROLLERS: Final = 2


async def handle(broker: Broker, request: DescribeClusterRequest, context: RequestContext) -> DescribeClusterResponse:
    if request.endpoint_type == CONTROLLERS:
        return _refused(ErrorCode.MISMATCHED_ENDPOINT_TYPE, "this is a broker's endpoint, not a controller's")
    if request.endpoint_type != BROKERS:
        return _refused(ErrorCode.UNSUPPORTED_ENDPOINT_TYPE, f"unsupported endpoint type {request.endpoint_type}")
    return DescribeClusterResponse(
        endpoint_type=BROKERS,
        cluster_id=broker.image.cluster_id,
        controller_id=broker.controller_id,
        brokers=tuple(_broker(one, context.listener) for one in broker.image.brokers.values()),
        cluster_authorized_operations=(
            broker.resolver.authorized(context.principal, ResourceKind.CLUSTER, THE_CLUSTER, CLUSTER_OPERATIONS)
            if request.include_cluster_authorized_operations
            else NOT_ASKED_FOR
        ),
    )


def _broker(one: BrokerRegistration, listener: int) -> DescribeClusterBroker:
    host, port = one.endpoint(listener)
    return DescribeClusterBroker(broker_id=one.id, host=host, port=port, rack=one.rack)


def _refused(code: ErrorCode, message: str) -> DescribeClusterResponse:
    return DescribeClusterResponse(error_code=code, error_message=message, cluster_id="", brokers=())
