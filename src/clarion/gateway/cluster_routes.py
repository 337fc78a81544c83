"""/v1/cluster: the brokers, how many topics and partitions there are, and whether all is well."""

from __future__ import annotations

import asyncio
from typing import Final

from fastapi import APIRouter

from clarion import __version__
from clarion.broker.authorizer import Operation
from clarion.broker.metrics import not_ready_because
from clarion.broker.server import BrokerServer
from clarion.gateway import schemas
from clarion.gateway.brokers import Brokers
from clarion.gateway.identity import principal
from clarion.gateway.queries import CheckedRoute
from clarion.model.errors import KafkaError
from clarion.wire.apis import DESCRIBE_CONFIGS
from clarion.wire.messages.configs import DescribeConfigsRequest, DescribeConfigsResource

_BROKER_RESOURCE: Final = 4
_ADVERTISED: Final = "clarion.http.advertised"
_ASK_SECONDS: Final = 2.0


def cluster_routes(server: BrokerServer, brokers: Brokers) -> APIRouter:
    router = APIRouter(route_class=CheckedRoute, prefix="/v1/cluster", tags=["cluster"], responses=schemas.PROBLEM)

    @router.get("", summary="Describe the cluster")
    async def describe() -> schemas.ClusterDescription:
        broker = server.broker
        broker.resolver.require_cluster(principal(), Operation.DESCRIBE)
        image = broker.image
        return schemas.ClusterDescription(
            cluster_id=image.cluster_id,
            broker_id=broker.node_id,
            controller_id=broker.controller_id,
            version=__version__,
            brokers=await _brokers(brokers),
            topics=len(image.topics),
            partitions=image.partition_total,
            health=await _health(server),
        )

    return router


async def _brokers(brokers: Brokers) -> list[schemas.BrokerDescription]:
    broker = brokers.broker
    known = sorted(broker.image.brokers.values(), key=lambda one: one.id)
    places = await asyncio.gather(*(_http_of(brokers, one.id) for one in known))
    found = []
    for one, http in zip(known, places, strict=True):
        host, port = one.endpoint(0)
        is_controller = one.id == broker.controller_id
        found.append(
            schemas.BrokerDescription(
                id=one.id, host=host, port=port, rack=one.rack, is_controller=is_controller, http=http
            )
        )
    return found


async def _http_of(brokers: Brokers, broker_id: int) -> str | None:
    """As it tells it itself."""
    resource = DescribeConfigsResource(
        resource_type=_BROKER_RESOURCE, resource_name=str(broker_id), configuration_keys=(_ADVERTISED,)
    )
    request = DescribeConfigsRequest(resources=(resource,), include_synonyms=False)
    try:
        async with asyncio.timeout(_ASK_SECONDS):
            answer = await brokers.ask(principal(), broker_id, DESCRIBE_CONFIGS, request)
    except (KafkaError, TimeoutError):  # it is away, or about to be: all else can still be told
        return None
    return next((one.value for result in answer.results for one in result.configs), None) or None


async def _health(server: BrokerServer) -> schemas.Health:
    broker = server.broker
    leaderless = under_replicated = 0
    if broker.node is not None:
        known = broker.image.brokers
        async for topic in broker.turns.each(list(broker.image.topics.values())):
            for state in topic.partitions:
                leaderless += state.leader not in known
                under_replicated += len(state.in_sync) < len(state.replicas)
    reason = not_ready_because(server)
    return schemas.Health(
        is_ready=reason is None,
        partitions_offline=sum(1 for one in broker.partitions if one.failure is not None),
        partitions_without_leader=leaderless,
        partitions_under_replicated=under_replicated,
        reason=reason,
    )
