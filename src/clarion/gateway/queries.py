"""What the query of a request may say: parameters that its path knows, as UTF-8. Nothing is passed over or changed."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from difflib import get_close_matches
from typing import Any
from urllib.parse import unquote_to_bytes

from fastapi import Request, Response
from fastapi.routing import APIRoute

from clarion.gateway.problems import HttpProblem


class CheckedRoute(APIRoute):
    """The framework leaves out what it does not know, and puts question marks in place of what is no UTF-8."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        known = [one.alias for one in self.dependant.query_params]

        async def checked(request: Request) -> Response:
            check_query(request.scope["query_string"], known)
            return await handle(request)

        return checked


def check_query(query: bytes, known: Sequence[str]) -> None:
    for part in query.split(b"&") if query else ():
        name, _, value = part.partition(b"=")
        told = _text(name, name)
        if told and told not in known:
            raise HttpProblem(
                400, f"there is no parameter {told[:100]!r} here; {_hint(told, known)}", kind="unknown-parameter"
            )
        _text(value, name)


def _text(part: bytes, name: bytes) -> str:
    try:
        return unquote_to_bytes(part.replace(b"+", b" ")).decode()
    except UnicodeDecodeError as error:
        raise HttpProblem(
            400,
            f"{name[:100].decode('ascii', 'replace')} in the query is no UTF-8; say a key with key_base64, and headers "
            "in a JSON body",
            kind="no-text",
        ) from error


def _hint(told: str, known: Sequence[str]) -> str:
    meant = get_close_matches(told, known, n=1)
    if meant:
        return f"did you mean {meant[0]!r}?"
    return f"there are {', '.join(known)}" if known else "leave it out"
