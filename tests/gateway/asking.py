"""A client of the HTTP API that keeps its connection, as most do."""

import http.client
import json
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

SECONDS = 60  # a bound, not a measure


class Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]  # names in lower case
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.body.splitlines()]


class Asker:
    def __init__(self, url: str) -> None:
        place = urlsplit(url)
        self._connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=SECONDS)

    def ask(self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> Answer:
        said = dict(headers or {})
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
            said.setdefault("Content-Type", "application/json")
        self._connection.request(method, path, body, said)
        answer = self._connection.getresponse()
        return Answer(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())

    def get(self, path: str, **headers: str) -> Answer:
        return self.ask("GET", path, headers=_names(headers))

    def post(self, path: str, body: Any = None, **headers: str) -> Answer:
        return self.ask("POST", path, body, _names(headers))

    def close(self) -> None:
        self._connection.close()


def _names(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in headers.items()}


def check_problem(answer: Answer, status: int, words: str = "") -> Any:
    """Whether it is one, as RFC 9457 has it; comes out: what it says."""
    assert answer.status == status, answer
    assert answer.headers["content-type"] == "application/problem+json", answer
    said = answer.json
    assert said["status"] == status
    assert said["type"]
    assert said["title"]
    assert words in said["detail"], said
    return said
