"""What the members of a KIP-848 group want to read: names, regular expressions, and the topics that these come to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from hashlib import blake2b
from typing import Any
from uuid import UUID

from clarion.groups.records import MemberMetadata, ResolvedRegex
from clarion.groups.topics import TopicsView
from clarion.model.errors import ErrorCode, KafkaError
from clarion.model.names import is_internal

REGEX_BYTES_MAX = 16 * 1024  # six hundred names of topics
PROGRAM_MAX = 5_000  # instructions of a compiled pattern: looking at a name takes a tenth of a millisecond at worst
_PATTERN_MEMORY_BYTES = 1024 * 1024  # of one of those that are kept compiled
_COMPILED_MAX = 128
REGEXES_MAX = 1_000  # are remembered, and followed from one change of the topics to the next


def check_regex(regex: str) -> None:
    _compiled(regex)


def matches_regex(regex: str, name: str) -> bool:
    return _compiled(regex).fullmatch(name) is not None


def resolve(regex: str, view: TopicsView) -> tuple[str, ...]:
    """The topics whose whole name matches; internal ones never do. The view remembers them.

    The first time this may take long: a driver with something else to do lets a thread do it before a request needs it.
    """
    known = view.resolved.get(regex)
    if known is None:
        for oldest in list(view.resolved)[: max(0, len(view.resolved) - REGEXES_MAX + 1)]:
            view.resolved.pop(oldest, None)
        known = view.resolved[regex] = _resolve(regex, view)
    return known


def resolve_again(view: TopicsView) -> None:
    """Everything that was resolved among the topics before."""
    for regex in list(view.resolved_before)[-REGEXES_MAX:]:
        resolve(regex, view)


def _resolve(regex: str, view: TopicsView) -> tuple[str, ...]:
    try:
        pattern = _compiled(regex)
    except KafkaError:
        return ()  # a member's regex was checked at the door; this one came with a log from elsewhere
    before = view.resolved_before.get(regex)
    names = view.topics if before is None else view.new_names
    found = [name for name in names if not is_internal(name) and pattern.fullmatch(name)]
    return tuple(sorted(found + [name for name in before or () if name in view.topics]))


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


@lru_cache(maxsize=_COMPILED_MAX)
def _compiled(regex: str) -> Any:
    if len(regex.encode()) > REGEX_BYTES_MAX:
        raise KafkaError(ErrorCode.INVALID_REGULAR_EXPRESSION, f"longer than {REGEX_BYTES_MAX} bytes")
    import re2  # most groups subscribe to names, and then it is never loaded

    options = re2.Options()
    options.log_errors = False
    options.max_mem = _PATTERN_MEMORY_BYTES
    try:
        pattern = re2.compile(regex, options)
    except re2.error as error:
        raise KafkaError(ErrorCode.INVALID_REGULAR_EXPRESSION, f"{regex!r}: {_reason(error)}") from error
    if pattern.programsize > PROGRAM_MAX:
        raise KafkaError(ErrorCode.INVALID_REGULAR_EXPRESSION, "the expression is too complicated")
    return pattern


def _reason(error: Exception) -> str:
    reason = error.args[0] if error.args else ""
    return reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
