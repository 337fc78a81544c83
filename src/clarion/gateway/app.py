"""The application: all routes, problems instead of every framework's own errors, the description and a page that shows
it without anything from elsewhere."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute, Match, Route

from clarion import __version__
from clarion.broker.server import BrokerServer
from clarion.broker.subscription_actions import SubscriptionActions
from clarion.broker.threads import in_thread
from clarion.cluster import StoreError
from clarion.gateway import schemas
from clarion.gateway.brokers import Brokers
from clarion.gateway.cluster_routes import cluster_routes
from clarion.gateway.docs_page import PAGE, POLICY
from clarion.gateway.loop_share import LoopShare
from clarion.gateway.message_routes import message_routes
from clarion.gateway.problems import MEDIA_TYPE, HttpProblem, problem_of
from clarion.gateway.read_room import ReadRoom
from clarion.gateway.reading import MessageReader
from clarion.gateway.streams import Streams
from clarion.gateway.subscription_routes import group_routes, subscription_routes
from clarion.gateway.topic_routes import topic_routes
from clarion.gateway.writing import PartitionWriter
from clarion.model.errors import ErrorCode, KafkaError

_NO_OBJECT = "model_attributes_type"  # pydantic's word: a text was found where the fields of an object should be
_DESCRIPTION = "Topics, messages, subscriptions, groups and the cluster. Problems are told as RFC 9457 has it."
_ONLY_DESCRIBED: tuple[type[Any], ...] = (
    schemas.Problem,
    schemas.MessageIn,
    schemas.MessageOut,
    schemas.MessageList,
    schemas.WrittenMessage,
    schemas.WrittenBatch,
    schemas.PulledMessages,
)  # read and written by hand


def build_app(server: BrokerServer, brokers: Brokers, actions: SubscriptionActions, share: LoopShare) -> FastAPI:
    app = FastAPI(
        title="Clarion",
        version=__version__,
        description=_DESCRIPTION,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    reader, room = MessageReader(brokers), ReadRoom()
    streams = Streams(brokers, reader, share)
    routers = (
        topic_routes(brokers),
        message_routes(brokers, PartitionWriter(brokers), reader, streams, room),
        subscription_routes(brokers, actions, streams, share, room),
        group_routes(brokers, actions),
        cluster_routes(server, brokers),
    )
    for router in routers:
        app.include_router(router)
    _tell_problems(app, [route for router in routers for route in router.routes])
    _describe(app)
    return app


# ------------------------------------------------------------------------------------------------ problems


def _tell_problems(app: FastAPI, routes: Sequence[BaseRoute]) -> None:
    @app.exception_handler(HttpProblem)
    async def problem(request: Request, error: HttpProblem) -> Response:
        return _answer(error)

    @app.exception_handler(KafkaError)
    async def kafka_error(request: Request, error: KafkaError) -> Response:
        return _answer(problem_of(error))

    @app.exception_handler(OSError)
    async def disk_error(request: Request, error: OSError) -> Response:
        return _answer(problem_of(KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"the disk refused: {error.strerror}")))

    @app.exception_handler(StoreError)
    async def store_error(request: Request, error: StoreError) -> Response:
        return _answer(problem_of(KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"the cluster's store: {error}")))

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        return _answer(_invalid(request, error))

    @app.exception_handler(HTTPException)
    async def by_framework(request: Request, error: HTTPException) -> Response:
        return _answer(_by_framework(request, error, routes))


def _answer(problem: HttpProblem) -> Response:
    return Response(problem.body(), status_code=problem.status, headers=problem.headers, media_type=MEDIA_TYPE)


def _invalid(request: Request, error: RequestValidationError) -> HttpProblem:
    if _NO_OBJECT in (one["type"] for one in error.errors()) and "json" not in request.headers.get("content-type", ""):
        return HttpProblem(415, "say that the body is JSON, with Content-Type: application/json")
    found = [{"at": list(map(str, one["loc"])), "problem": one["msg"]} for one in error.errors()]
    said = "; ".join(f"{'.'.join(one['at'])}: {one['problem']}" for one in found[:5])
    if any(one["type"] == "json_invalid" for one in error.errors()):
        return HttpProblem(400, f"this is no JSON: {said}", kind="no-json")
    return HttpProblem(422, said[:1000], kind="invalid-request", extra={"errors": found[:100]})


def _by_framework(request: Request, error: HTTPException, routes: Sequence[BaseRoute]) -> HttpProblem:
    if isinstance(error.__cause__, HttpProblem):  # raised while the framework read the body
        return error.__cause__
    path, headers = request.url.path[:200], dict(error.headers or {})
    if error.status_code == 405:
        headers["Allow"] = ", ".join(sorted(_methods(request, routes)))
    details = {
        404: f"there is nothing at {path}; /docs shows what there is",
        405: f"{request.method} is not for {path}; /docs shows what is",
        400: f"this request cannot be read: {error.detail}",
    }
    return HttpProblem(error.status_code, details.get(error.status_code, str(error.detail)), headers=headers)


def _methods(request: Request, routes: Sequence[BaseRoute]) -> set[str]:
    """Of all that are served at a path; the framework tells of the first route alone."""
    return {
        method
        for route in routes
        if isinstance(route, Route) and route.matches(request.scope)[0] is not Match.NONE
        for method in route.methods or ()
        if method != "HEAD"
    }


# ------------------------------------------------------------------------------------------------ description


def _describe(app: FastAPI) -> None:
    @app.get("/openapi.json", include_in_schema=False)
    async def openapi() -> Response:
        described = await in_thread(lambda: json.dumps(description(app)).encode())  # tenths of a second, once
        return Response(described, media_type="application/json")

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return Response(PAGE, media_type="text/html", headers={"Content-Security-Policy": POLICY})

    @app.get("/", include_in_schema=False)
    async def root() -> Response:
        return Response(status_code=307, headers={"Location": "/docs"})


def description(app: FastAPI) -> dict[str, Any]:
    if app.openapi_schema is None:
        made = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
        _, described = models_json_schema(
            [(one, "serialization") for one in _ONLY_DESCRIBED], ref_template="#/components/schemas/{model}"
        )
        made.setdefault("components", {}).setdefault("schemas", {}).update(described.get("$defs", {}))
        app.openapi_schema = made
    return app.openapi_schema
