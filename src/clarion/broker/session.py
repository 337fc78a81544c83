"""What the broker knows of a connection: who is at the other end, and what it keeps asking for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from clarion.broker.authorizer import ANONYMOUS, Principal

if TYPE_CHECKING:
    from clarion.broker.apis.k00_produce import RequestTemplate
    from clarion.broker.apis.read_replicas import RackReader

_TEMPLATES_MAX: Final = 4096  # of one principal; each takes about a kilobyte
_PRINCIPALS_MAX: Final = 1024  # with templates: more than a cluster has applications


class Session:
    """Of one connection, from its first request to its end."""

    __slots__ = ("principal", "rack_reader", "template_at", "templates")

    def __init__(self, principal: Principal, templates: RequestTemplates) -> None:
        self.principal = principal
        self.templates = templates
        self.rack_reader: RackReader | None = None  # of a consumer that says where it is
        self.template_at = 0  # how much of a request is likely to come again; 0: nothing is known


class RequestTemplates:
    """What requests of one principal mean that begin alike, as long as all that they rest on stays as it is.

    They are shared by the connections of one principal, and by nobody else: what one may do, another may not. They
    end together, when leadership, an epoch, a setting or a permission changes (`Resolver.version`).
    """

    __slots__ = ("_known", "_version")

    def __init__(self) -> None:
        self._known: dict[bytes, RequestTemplate] = {}
        self._version = 0

    def find(self, beginning: bytes, version: int) -> RequestTemplate | None:
        if self._version != version:
            self._known.clear()
            self._version = version
            return None
        return self._known.get(beginning)

    def note(self, beginning: bytes, version: int, template: RequestTemplate) -> None:
        if self._version != version or len(self._known) >= _TEMPLATES_MAX:
            self._known.clear()
            self._version = version
        self._known[beginning] = template


class Sessions:
    """Makes the sessions of connections. There is no authentication yet: everybody is the same."""

    def __init__(self) -> None:
        self._templates: dict[Principal, RequestTemplates] = {}

    def open(self, principal: Principal = ANONYMOUS) -> Session:
        templates = self._templates.get(principal)
        if templates is None:
            if len(self._templates) >= _PRINCIPALS_MAX:
                self._templates.clear()  # connections that are open keep theirs
            templates = self._templates[principal] = RequestTemplates()
        return Session(principal, templates)
