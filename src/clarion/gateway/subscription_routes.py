"""/v1/subscriptions: make, describe, pull from, settle and look after them; /v1/groups: Kafka's clients' too."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Path, Query, Request, Response, WebSocket
from starlette.requests import HTTPConnection

from clarion.broker.queues import Delivery
from clarion.broker.subscription_actions import Peeked, SubscriptionActions
from clarion.gateway import schemas
from clarion.gateway.bodies import encoded
from clarion.gateway.brokers import Brokers
from clarion.gateway.identity import principal
from clarion.gateway.loop_share import LoopShare
from clarion.gateway.message_forms import record_to_json
from clarion.gateway.message_service import JSON, as_json
from clarion.gateway.problems import HttpProblem
from clarion.gateway.queries import CheckedRoute, check_query
from clarion.gateway.read_room import ReadRoom, ReadTurn
from clarion.gateway.reading import BYTES_MAX
from clarion.gateway.settling import settle_all, told_delivery
from clarion.gateway.streams import Streams, unless
from clarion.model.errors import ErrorCode, KafkaError
from clarion.model.seeking import Seek
from clarion.model.subscription import Subscription

_GROUP: Final = "A group's id."
Name = Annotated[str, Path(min_length=1, max_length=255, description="The subscription's name, which is its group id.")]
GroupId = Annotated[str, Path(min_length=1, max_length=255, description=_GROUP)]
ConsumerName = Annotated[str, Query(min_length=1, max_length=255, description="Who takes them: any name.")]
PeekMax = Annotated[int, Query(ge=1, le=1_000)]
_SETTLED: Final[dict[int | str, dict[str, Any]]] = {
    **schemas.PROBLEM,
    200: {"description": "All are settled.", "model": schemas.SettlementResults},
    207: {"description": "Some were refused: the result of each says why.", "model": schemas.SettlementResults},
}


def subscription_routes(
    brokers: Brokers, actions: SubscriptionActions, streams: Streams, share: LoopShare, room: ReadRoom
) -> APIRouter:
    router = APIRouter(
        route_class=CheckedRoute,
        prefix="/v1/subscriptions",
        tags=["subscriptions"],
        responses=schemas.PROBLEM,
        dependencies=[heard_of(brokers)],
    )
    broker = brokers.broker

    @router.post("", status_code=201, summary="Make a subscription")
    async def create(subscription: schemas.NewSubscription, response: Response) -> schemas.SubscriptionOut:
        told = Subscription.from_json(_named(brokers, _said(subscription)))
        made = await broker.subscriptions.create(told, principal())
        response.headers["Location"] = f"/v1/subscriptions/{made.name}"
        return schemas.SubscriptionOut(**made.to_json(with_secret=True))

    @router.get("", summary="List subscriptions")
    async def list_all() -> schemas.SubscriptionList:
        known = [one for one in await actions.overview(principal()) if one["is_subscription"]]
        return schemas.SubscriptionList(subscriptions=[schemas.SubscriptionSummary(**one) for one in known])

    @router.get("/{name}", summary="Describe a subscription")
    async def describe(name: Name) -> schemas.SubscriptionDescription:
        broker.subscriptions.known(name)
        return schemas.SubscriptionDescription(**await actions.describe(name, principal()))

    @router.patch("/{name}", summary="Change a subscription")
    async def change(name: Name, change: schemas.SubscriptionChange) -> schemas.SubscriptionOut:
        changed = await broker.subscriptions.update(name, _named(brokers, _said(change)), principal())
        return schemas.SubscriptionOut(**changed.to_json())

    @router.delete("/{name}", status_code=204, summary="Delete a subscription with its positions")
    async def delete(name: Name) -> None:
        broker.subscriptions.known(name)
        await actions.delete(name, principal())

    @router.post("/{name}:pull", summary="Take messages of a queue", response_model=schemas.PulledMessages)
    async def pull(name: Name, asked: schemas.PullRequest, request: Request) -> Response:
        check_pulled(brokers, name)
        with room.turn() as turn:
            deliveries = await pull_while_connected(brokers, share, name, asked, request, turn)

            def tell() -> Response:
                return as_json({"messages": [told_delivery(one, asked.encoding) for one in deliveries]})

            return await encoded(broker.turns, deliveries, tell)

    @router.post("/{name}:settle", summary="Say what became of messages", responses=_SETTLED)
    async def settle(name: Name, asked: schemas.SettleRequest, response: Response) -> schemas.SettlementResults:
        results = await settle_all(brokers, name, asked.settlements)
        if any(one.status != 200 for one in results):
            response.status_code = 207
        return schemas.SettlementResults(results=results)

    @router.post(
        "/{name}:peek",
        summary="Look at the messages that come next, without taking them",
        response_model=schemas.PeekedMessages,
    )
    async def peek(name: Name, max_messages: PeekMax = 10, encoding: schemas.Encoding = "text") -> Response:
        found = await actions.peek(name, principal(), messages_max=max_messages)

        def tell() -> Response:
            told = schemas.PeekedMessages(messages=[_told_peeked(one, encoding) for one in found])
            return Response(told.model_dump_json(), media_type=JSON)

        return await encoded(broker.turns, [one.record for one in found], tell)

    @router.post("/{name}:pause", summary="Deliver nothing for now")
    async def pause(name: Name) -> schemas.SubscriptionOut:
        return schemas.SubscriptionOut(**(await actions.pause(name, principal())).to_json())

    @router.post("/{name}:resume", summary="Deliver again")
    async def resume(name: Name) -> schemas.SubscriptionOut:
        return schemas.SubscriptionOut(**(await actions.resume(name, principal())).to_json())

    @router.post("/{name}:seek", summary="Say where it reads on")
    async def seek(name: Name, to: schemas.SeekRequest) -> schemas.SeekResult:
        wanted = Seek.from_json(_sought(brokers, _said(to)), broker.clock.now_ms())
        found = await actions.seek(name, wanted, principal())
        return schemas.SeekResult(
            positions=[
                schemas.SoughtOffset(topic=place.topic, partition=place.partition, offset=offset)
                for place, offset in sorted(found.items())
            ]
        )

    @router.post("/{name}:purge", summary="Pass over all that waits")
    async def purge(name: Name) -> schemas.PurgeResult:
        return schemas.PurgeResult(passed_over=await actions.purge(name, principal()))

    @router.post("/{name}:redrive", summary="Send dead letters back to where they come from")
    async def redrive(name: Name, asked: schemas.RedriveRequest) -> schemas.RedriveResult:
        done = await actions.redrive(name, principal(), messages_max=asked.max_messages)
        return schemas.RedriveResult(sent=done.sent, left=done.left, stopped_at=done.stopped_at)

    @router.get(
        "/{name}/events",
        summary="Messages of a queue as server-sent events",
        responses=schemas.EVENTS,
        response_class=Response,
    )
    async def events(name: Name, consumer: ConsumerName = "events", encoding: schemas.Encoding = "text") -> Response:
        check_pulled(brokers, name)
        return streams.of_queue(name, consumer, encoding)

    @router.websocket("/{name}/socket")
    async def socket(websocket: WebSocket, name: str, consumer: str = "socket", encoding: str = "text") -> None:
        try:
            check_query(websocket.scope["query_string"], ("consumer", "encoding"))
            check_pulled(brokers, name)
            await streams.serve_socket(websocket, name, consumer[:255], encoding)
        except (KafkaError, HttpProblem) as error:
            await websocket.close(1008, str(error)[:100])

    return router


def _named(brokers: Brokers, said: dict[str, Any]) -> dict[str, Any]:
    """A subscription keeps its topics' names: one that is made anew under its name is read on."""
    topics = said.get("topics")
    return said if not topics else {**said, "topics": brokers.topic_names(principal(), topics)}


def _sought(brokers: Brokers, said: dict[str, Any]) -> dict[str, Any]:
    """Offsets by the names of topics, whichever way these were named."""
    offsets: dict[str, dict[str, int]] = {}
    for topic, places in (said.get("offsets") or {}).items():
        (name,) = brokers.topic_names(principal(), [topic])
        offsets.setdefault(name, {}).update(places)
    return {**said, "offsets": offsets} if offsets else said


def check_pulled(brokers: Brokers, name: str) -> None:
    one = brokers.broker.subscriptions.known(name)
    if not one.is_queue or one.push is not None:
        what = "a stream: read /v1/topics/{topic}/events" if not one.is_queue else "pushed to its endpoint"
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"{name} is {what}")


def heard_of(brokers: Brokers) -> Any:
    """A subscription that another broker has just made is not unknown here: the catalog is asked, by one for all who
    wait. (Each by itself would wait for all before it, while the catalog does not answer.)"""
    asking = asyncio.Lock()
    asked = answered = 0  # the number of the last time

    async def hear_of(connection: HTTPConnection) -> None:
        nonlocal asked, answered
        known = brokers.broker.subscriptions
        name = connection.path_params.get("name") or connection.path_params.get("group")
        if name is not None and known.get(name) is None:
            before = asked
            async with asking:
                if answered <= before and known.get(name) is None:  # else somebody has asked since
                    asked += 1
                    await known.look_again()
                    answered = asked

    return Depends(hear_of)


def group_routes(brokers: Brokers, actions: SubscriptionActions) -> APIRouter:
    router = APIRouter(
        route_class=CheckedRoute,
        prefix="/v1/groups",
        tags=["groups"],
        responses=schemas.PROBLEM,
        dependencies=[heard_of(brokers)],
    )

    @router.get("", summary="List groups: those of Kafka's clients, and subscriptions")
    async def list_all() -> schemas.GroupList:
        return schemas.GroupList(
            groups=[schemas.SubscriptionSummary(**one) for one in await actions.overview(principal())]
        )

    @router.get("/{group}", summary="Describe a group, with its lag")
    async def describe(group: GroupId) -> schemas.SubscriptionDescription:
        return schemas.SubscriptionDescription(**await actions.describe(group, principal()))

    @router.delete("/{group}", status_code=204, summary="Delete a group that nobody is in")
    async def delete(group: GroupId) -> None:
        await actions.delete(group, principal())

    return router


def _said(model: schemas.Described) -> dict[str, Any]:
    return model.model_dump(exclude_unset=True)


# ------------------------------------------------------------------------------------------------ pulling and settling


async def pull_while_connected(
    brokers: Brokers, share: LoopShare, name: str, asked: schemas.PullRequest, request: Request, turn: ReadTurn
) -> list[Delivery]:
    """Whoever leaves while it waits takes nothing along."""
    leaving = asyncio.ensure_future(_has_left(request))  # which raises nothing
    pulling = brokers.broker.queues.pull(
        principal(),
        name,
        consumer=asked.consumer,
        messages_max=asked.max_messages,
        wait_ms=asked.wait_ms,
        bytes_max=BYTES_MAX,
        turn=turn,
    )
    try:
        found = await unless(leaving, pulling, share)
        if found is not None and leaving.done():
            brokers.broker.queues.give_back(name, found)
        return found or []
    finally:
        leaving.cancel()


async def _has_left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _told_peeked(one: Peeked, encoding: str) -> schemas.PeekedMessage:
    told = record_to_json(one.record, encoding)
    return schemas.PeekedMessage(
        topic=one.topic, partition=one.partition, **told, deliveries=one.deliveries, holder=one.holder
    )
