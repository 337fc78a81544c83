"""By which rules a share group is served: those of the subscription of its name, or of its own settings as in Kafka."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from clarion.groups.config import GroupConfig
from clarion.model.subscription import AT_MOST_ONCE, Subscription
from clarion.queues.rules import ShareLimits

if TYPE_CHECKING:
    from clarion.broker.broker import Broker


class QueueRules(NamedTuple):
    limits: ShareLimits
    start: str  # as `share.auto.offset.reset`
    may_renew: bool = True
    is_paused: bool = False
    dead_letter_topic: str = ""
    subscription: Subscription | None = None

    @property
    def needs_look(self) -> bool:
        """Whether records are looked at before they are delivered: for their headers, at least."""
        return self.subscription is not None

    @property
    def identity(self) -> int:
        """See `identity_of`."""
        return 0 if self.subscription is None else self.subscription.created_ms

    @property
    def is_at_most_once(self) -> bool:
        return self.subscription is not None and self.subscription.guarantee == AT_MOST_ONCE


def rules_of(broker: Broker, group_id: str) -> QueueRules:
    subscription = broker.subscriptions.get(group_id)
    if subscription is None or not subscription.is_queue:
        return _as_in_kafka(broker.groups.config_of(group_id))
    return _of_subscription(subscription)


def identity_of(broker: Broker, group_id: str) -> int:
    """Which of the queues that have had this name, one after the other: when it was made. 0: there is none."""
    subscription = broker.subscriptions.get(group_id)
    return subscription.created_ms if subscription is not None and subscription.is_queue else 0


def _as_in_kafka(config: GroupConfig) -> QueueRules:
    limits = ShareLimits(
        config.share_record_lock_duration_ms,
        config.share_delivery_count_limit,
        config.share_partition_max_record_locks,
    )
    return QueueRules(limits, config.share_auto_offset_reset, config.share_renew_acknowledge_enable)


def _of_subscription(one: Subscription) -> QueueRules:
    limits = ShareLimits(
        one.ack_timeout_ms,
        1 if one.guarantee == AT_MOST_ONCE else one.max_deliveries,
        one.window,
        one.backoff_min_ms,
        one.backoff_max_ms,
        has_dead_letters=True,
        keeps_key_order=one.keeps_key_order,
    )
    return QueueRules(limits, one.start, True, one.paused, one.dead_letters, one)
