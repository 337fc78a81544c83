"""Which topics a subscription reads: those that it names, or those that its pattern matches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clarion.groups.subscriptions import matches_regex
from clarion.model.errors import KafkaError
from clarion.model.names import is_internal
from clarion.model.subscription import Subscription

if TYPE_CHECKING:
    from clarion.broker.broker import Broker


def reads(subscription: Subscription, topic: str) -> bool:
    """A pattern does not mean the broker's own topics, nor what the subscription itself has given up."""
    if subscription.pattern is None:
        return topic in subscription.topics
    if is_internal(topic) or topic == subscription.dead_letters:
        return False
    try:
        return matches_regex(subscription.pattern, topic)
    except KafkaError:  # it was checked when it was made; somebody else has written this one
        return False


async def topics_read_by(broker: Broker, subscription: Subscription) -> list[str]:
    """Those that there are; it need not be known yet."""
    topics = broker.image.topics
    if subscription.pattern is None:
        return [name for name in subscription.topics if name in topics]
    return [name async for name in broker.turns.each(sorted(topics)) if reads(subscription, name)]
