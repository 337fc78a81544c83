"""What goes into the coordinator with a request, and what comes out of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

Ticket = Any  # the driver's handle for a request that waits for its answer; opaque here, answered exactly once


class Call(NamedTuple):
    """The circumstances of a request."""

    ticket: Ticket
    version: int
    now_ms: int  # never goes back; timers live on it
    wall_ms: int  # goes into records
    client_id: str = ""
    client_host: str = ""


class GroupRecord(NamedTuple):
    """One record of `__consumer_offsets`."""

    key: bytes
    value: bytes | None


@dataclass(slots=True)
class Outcome:
    """Records to be appended as one batch, and the answers that may go out once they are durable."""

    records: list[GroupRecord] = field(default_factory=list)
    replies: list[tuple[Ticket, Any]] = field(default_factory=list)

    def write(self, key: bytes, value: bytes | None) -> None:
        self.records.append(GroupRecord(key, value))

    def reply(self, ticket: Ticket, response: Any) -> None:
        self.replies.append((ticket, response))
