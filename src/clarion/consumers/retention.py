"""What subscriptions and groups need of a partition, and where its log may start because of that.

What a reader needs has two sides: for how long, and whether only until it has acknowledged the message.

| reader | how long | until acknowledged |
|---|---|---|
| subscription without a retention of its own | as long as the topic keeps messages | no |
| subscription with a retention of, say, 14 days | 14 days, at most `clarion.retention.max.ms` | no |
| subscription whose retention is `consumed` | `clarion.retention.max.ms` | yes |
| group in `clarion.retention.hold.groups` | `clarion.retention.max.ms` | yes |
| any other group that has committed an offset | as long as the topic keeps messages, at most the maximum | yes |

With `clarion.retention.by=topic` the log starts at the earlier of what the topic promises and what anybody needs: the
last row changes nothing, the others can only extend it. With `subscriptions` it starts at what anybody needs; where
nobody needs anything, because there is neither subscription nor group, the topic's own promise holds.

What is held beyond the topic's promise, is never older than `clarion.retention.max.ms` and never more than
`clarion.retention.hold.max.bytes`. What all have acknowledged goes without the retention grace, and whatever the
clock says: it does not go by its age.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from clarion.model.retention_settings import RetentionSettings

THE_MAXIMUM: Final = -1  # as `keep_ms`
THE_LONGEST: Final = -2  # likewise: the maximum, or what the topic promises where that is more
UNKNOWN_GROUPS: Final = "groups that are not known yet"  # while somebody who would know them does not answer
UNKNOWN_SUBSCRIPTIONS: Final = "subscriptions that are not known yet"  # likewise, while the catalog does not


class Starts(Protocol):
    """Where a log would start by its messages' age and size alone."""

    @property
    def start_offset(self) -> int:
        """Where it starts now."""
        ...

    def by_time(self, keep_ms: int) -> int: ...

    def by_size(self, keep_bytes: int) -> int: ...


class Subscribed(Protocol):
    """What of a subscription counts here."""

    @property
    def name(self) -> str: ...

    @property
    def retention_ms(self) -> int | None:
        """None: the topic's. -1: until it has acknowledged."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What one reader needs of a partition. `position`: it has acknowledged all before; None: nothing yet."""

    holder: str
    keep_ms: int | None = None  # None: as long as the topic keeps messages
    until_acknowledged: bool = False
    position: int | None = None
    is_group: bool = False  # made by a Kafka client, in no catalog

    @classmethod
    def of_subscription(cls, subscription: Subscribed, position: int | None) -> Need:
        keep_ms = subscription.retention_ms
        if keep_ms is None or keep_ms >= 0:
            return cls(holder=subscription.name, keep_ms=keep_ms)
        return cls(holder=subscription.name, keep_ms=THE_MAXIMUM, until_acknowledged=True, position=position)

    @classmethod
    def of_holding_group(cls, group_id: str, position: int | None) -> Need:
        return cls(holder=group_id, keep_ms=THE_MAXIMUM, until_acknowledged=True, position=position, is_group=True)

    @classmethod
    def of_group(cls, group_id: str, position: int | None) -> Need:
        return cls(holder=group_id, until_acknowledged=True, position=position, is_group=True)

    @classmethod
    def of_unknown_subscriptions(cls) -> Need:
        return cls(holder=UNKNOWN_SUBSCRIPTIONS, keep_ms=THE_LONGEST)


def needs_acknowledgements(subscriptions: Iterable[Subscribed]) -> list[str]:
    """Whose position has to be known: the others need the same whatever they have read."""
    return [one.name for one in subscriptions if one.retention_ms is not None and one.retention_ms < 0]


def acknowledged_by_all(needs: Sequence[Need]) -> int:
    """What lies before this offset nobody needs, whatever its age. 0 where somebody needs it for a time."""
    return min((need.position or 0) if need.until_acknowledged else 0 for need in needs)


class Decided(NamedTuple):
    start: int  # where the log may start
    reason: str  # why it may start so late: "time", "size" or "acknowledged"
    held_by: tuple[str, ...] = ()  # without whom more would go


def decide(settings: RetentionSettings, starts: Starts, needs: Sequence[Need]) -> Decided:
    by_time, by_size = starts.by_time(settings.retention_ms), starts.by_size(settings.retention_bytes)
    promised = max(by_time, by_size)
    own_reason = "time" if by_time >= by_size else "size"
    if not needs:
        return Decided(promised, own_reason)
    if not settings.is_by_subscriptions and promised <= starts.start_offset:
        return Decided(promised, own_reason)  # nothing goes by the topic's promise, and nobody can shorten that
    needed = [needed_from(settings, starts, need) for need in needs]
    first = min(needed)
    if not settings.is_by_subscriptions:
        held_by = [need.holder for need, offset in zip(needs, needed, strict=True) if offset == first < promised]
        return Decided(min(first, promised), own_reason, tuple(sorted(set(held_by))))
    held_by = [need.holder for need, offset in zip(needs, needed, strict=True) if offset == first]
    is_read = any(need.until_acknowledged for need in needs) and first > promised
    return Decided(first, "acknowledged" if is_read else own_reason, tuple(sorted(set(held_by))))


def needed_from(settings: RetentionSettings, starts: Starts, need: Need) -> int:
    """The first offset that this reader still needs."""
    promised = max(starts.by_time(settings.retention_ms), starts.by_size(settings.retention_bytes))
    if need.keep_ms is None and not need.until_acknowledged:
        return promised
    first = _forced(settings, starts)
    if need.keep_ms == THE_LONGEST:
        return min(first, promised)
    if need.keep_ms is None:
        first = max(first, promised)
    elif need.keep_ms != THE_MAXIMUM:
        first = max(first, starts.by_time(need.keep_ms))
    return max(first, need.position or 0) if need.until_acknowledged else first


def _forced(settings: RetentionSettings, starts: Starts) -> int:
    """What lies before goes, whoever holds it."""
    return max(starts.by_time(settings.retention_max_ms), starts.by_size(settings.retention_hold_max_bytes))
