"""How a command reaches a broker's HTTP API: its address is one of the broker's settings."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import quote, urlencode

from clarion.cli.errors import CliError
from clarion.cli.link import REQUEST_SECONDS_MAX, Link, admin_api, result_of
from clarion.cli.usage_errors import did_you_mean

_ADVERTISED: Final = "clarion.http.advertised"
_LISTS: Final = {"UNKNOWN_TOPIC_OR_PARTITION": ("/v1/topics", "topics"), "RESOURCE_NOT_FOUND": ("/v1/groups", "groups")}
_QUOTED: Final = re.compile(r"'([^']+)'")  # the name of which a problem speaks
_BODY_BYTES_MAX: Final = 64 * 1024 * 1024  # of an answer: a thousand messages of a peek may be long


class HttpLink:
    def __init__(self, link: Link, address: str = "") -> None:
        self._link = link
        self._address = address

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None, **query: Any) -> Any:
        """The answer's JSON. What cannot be is one line, in the broker's words (RFC 9457)."""
        self._address = self._address or next(self._addresses())
        asked = path + ("?" + urlencode(query) if query else "")
        status, raw = self._exchange(method, asked, body)
        try:
            found = json.loads(raw) if raw else None
        except ValueError:
            raise CliError(
                f"there is no HTTP API at {self._address} (it answers {status}); is clarion.http.api off there?"
            ) from None
        if status >= 400:
            raise CliError(_words(found, status) + self._suggestion(found))
        return found

    def _suggestion(self, problem: object) -> str:
        """Where a topic or a subscription is not there, one that is spelt nearly like it."""
        told = problem if isinstance(problem, Mapping) else {}
        path, key = _LISTS.get(str(told.get("code")), ("", ""))
        wrong = _QUOTED.search(str(told.get("detail")))
        if not path or wrong is None:
            return ""
        status, raw = self._exchange("GET", path, None)
        known = json.loads(raw)[key] if status == HTTPStatus.OK else []
        return did_you_mean(wrong[1], [str(one["name"]) for one in known])

    def each(self) -> list[HttpLink]:
        """One for every broker with HTTP: for what each of them can tell of its own partitions alone."""
        return [HttpLink(self._link, address) for address in self._addresses()]

    def _exchange(self, method: str, path: str, body: Mapping[str, Any] | None) -> tuple[int, bytes]:
        from http.client import HTTPConnection, HTTPException  # and with it ssl, for which --help does not wait

        connection = HTTPConnection(self._address, timeout=REQUEST_SECONDS_MAX)
        headers = {"Accept": "application/json", "Content-Type": "application/json"}
        try:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            response = connection.getresponse()
            return response.status, response.read(_BODY_BYTES_MAX)
        except (OSError, HTTPException) as error:
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise CliError(f"the HTTP API at {self._address} cannot be reached: {reason}") from error
        finally:
            connection.close()

    def _addresses(self) -> Iterator[str]:
        is_found = False
        for address in http_addresses(self._link):
            is_found = True
            yield address
        if not is_found:
            raise CliError(
                "no broker serves HTTP, over which subscriptions are made; start it with an HTTP port (docs/http.md)"
            )


def http_addresses(link: Link) -> Iterator[str]:
    """Of every broker that serves HTTP, one after the other."""
    admin = link.admin()
    kind = admin_api().ConfigResource.Type.BROKER
    for number in sorted(admin.list_topics(timeout=REQUEST_SECONDS_MAX).brokers):
        resource = admin_api().ConfigResource(kind, str(number))
        told = result_of(admin.describe_configs([resource])[resource], link, f"asking broker {number}")
        if _ADVERTISED in told and told[_ADVERTISED].value:
            yield str(told[_ADVERTISED].value)


def subscription_path(name: str) -> str:
    return f"/v1/subscriptions/{quote(name, safe='')}"


def action_on(name: str, action: str) -> str:
    return f"{subscription_path(name)}:{action}"


def group_path(name: str) -> str:
    """Of a subscription, or of any other group."""
    return f"/v1/groups/{quote(name, safe='')}"


def _words(found: object, status: int) -> str:
    if isinstance(found, Mapping):
        for name in ("detail", "title"):
            if isinstance(found.get(name), str) and found[name]:
                return " ".join(str(found[name]).split())
    return f"the broker answers {status}"
