"""What the members of a KIP-848 group want to read: names, regular expressions, and the topics that these come to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from hashlib import blake2b
from typing import Any
from uuid import UUID

import re2

from clarion.groups.records import MemberMetadata, ResolvedRegex
from clarion.groups.topics import TopicsView
from clarion.model.errors import ErrorCode, KafkaError
from clarion.model.names import is_internal

REGEX_BYTES_MAX = 16 * 1024  # far above any sensible pattern; re2 itself bounds the memory of a compiled one


def check_regex(regex: str) -> None:
    _compiled(regex)


def resolve(regex: str, view: TopicsView) -> tuple[str, ...]:
    """The topics whose whole name matches; internal ones never do."""
    try:
        pattern = _compiled(regex)
    except KafkaError:
        return ()  # a member's regex was checked at the door; this one came with a log from elsewhere
    return tuple(sorted(name for name in view.topics if not is_internal(name) and pattern.fullmatch(name)))


def wanted_topics(member: MemberMetadata, regexes: Mapping[str, ResolvedRegex]) -> Iterable[str]:
    yield from member.subscribed_topic_names
    if member.subscribed_topic_regex and member.subscribed_topic_regex in regexes:
        yield from regexes[member.subscribed_topic_regex].topics


def subscriptions(
    members: Mapping[str, MemberMetadata], regexes: Mapping[str, ResolvedRegex], view: TopicsView
) -> dict[str, frozenset[UUID]]:
    """Each member's topics, as far as they exist. Members who want the same share one set."""
    shared: dict[tuple[tuple[str, ...], str | None], frozenset[UUID]] = {}
    found = {}
    for member_id, member in members.items():
        wish = (member.subscribed_topic_names, member.subscribed_topic_regex)
        if wish not in shared:
            names = wanted_topics(member, regexes)
            shared[wish] = frozenset(view.topics[name].topic_id for name in names if name in view.topics)
        found[member_id] = shared[wish]
    return found


def metadata_hash(members: Mapping[str, MemberMetadata], regexes: Mapping[str, ResolvedRegex], view: TopicsView) -> int:
    """Changes when a subscribed topic comes, goes, grows or is made anew; 0 when there is none."""
    wishes = {(member.subscribed_topic_names, member.subscribed_topic_regex): member for member in members.values()}
    names = {name for member in wishes.values() for name in wanted_topics(member, regexes)}
    known = sorted(name for name in names if name in view.topics)
    if not known:
        return 0
    digest = blake2b(digest_size=8)
    for name in known:
        digest.update(f"{name}\0{view.topics[name].topic_id}\0{view.topics[name].partition_count}\n".encode())
    return int.from_bytes(digest.digest(), "big", signed=True)


@lru_cache(maxsize=256)
def _compiled(regex: str) -> Any:
    if len(regex.encode()) > REGEX_BYTES_MAX:
        raise KafkaError(ErrorCode.INVALID_REGULAR_EXPRESSION, f"longer than {REGEX_BYTES_MAX} bytes")
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(regex, options)
    except re2.error as error:
        raise KafkaError(ErrorCode.INVALID_REGULAR_EXPRESSION, f"{regex!r}: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    reason = error.args[0] if error.args else ""
    return reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
