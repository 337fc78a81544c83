"""What is in a catalog, what can be wrong with one, and what every way to one can do."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from clarion.model.subscription import Subscription

NO_REVISION = 0  # of a subscription that does not exist, and of a catalog in which nothing was ever written


class CatalogError(Exception):
    """Nothing can be asked of it."""


class CatalogAwayError(CatalogError):
    """Nobody answers now. What was asked may have been done."""


class CatalogUnusableError(CatalogError):
    """It is damaged, or made by a newer version: a person has to look at it."""


class CatalogNews(NamedTuple):
    """What has changed since some revision."""

    revision: int  # now
    changed: tuple[Subscription, ...]
    names: frozenset[str]  # of all that there are


class CatalogAccess(Protocol):
    """CatalogError where it cannot be asked."""

    async def news(self, known: int) -> CatalogNews | None:
        """What has changed since this revision; None: nothing."""

    async def save(self, subscription: Subscription, expected: int) -> Subscription:
        """As it is then. `expected`: the revision that it has; KafkaError if somebody else has changed it since."""

    async def remove(self, name: str, expected: int) -> None:
        """Likewise."""

    async def close(self) -> None: ...
