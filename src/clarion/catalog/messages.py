"""A catalog that another process of this machine has open, asked through it: questions and answers as plain dicts.

`answer` is the side that has it, `AskedCatalog` the side that asks; how a dict gets there is not known here. What
subscriptions have learnt since the first version stands beside them: the other process may be of that one, and refuses
fields that it does not know.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

from clarion.catalog.content import CatalogAccess, CatalogAwayError, CatalogError, CatalogNews, CatalogUnusableError
from clarion.model.beginnings import Beginnings
from clarion.model.errors import ErrorCode, KafkaError
from clarion.model.subscription import Subscription

Message = Mapping[str, Any]


async def answer(catalog: CatalogAccess, question: Message) -> Message:
    """Never raises what is the catalog's: it is told."""
    try:
        return {"answer": await _ask(catalog, question)}
    except KafkaError as error:
        return {"refused": int(error.code), "reason": error.message}
    except CatalogUnusableError as error:
        return {"unusable": str(error)}
    except CatalogError as error:
        return {"away": str(error)}


async def _ask(catalog: CatalogAccess, question: Message) -> Any:
    match question["do"]:
        case "news":
            news = await catalog.news(question["known"])
            return None if news is None else _from_news(news)
        case "save":
            told = _with_beginnings(Subscription.from_json(question["subscription"]), question.get("begins"))
            saved = await catalog.save(told, question["expected"])
            return saved.to_json(with_secret=True)
        case "remove":
            return await catalog.remove(question["name"], question["expected"])
        case other:
            raise CatalogAwayError(f"whoever has the catalog open knows no {other!r}: it is another version")


class AskedCatalog:
    """Implements CatalogAccess. `ask` raises CatalogError where nobody answers."""

    def __init__(self, ask: Callable[[Message], Awaitable[Message]]) -> None:
        self._ask_owner = ask

    async def news(self, known: int) -> CatalogNews | None:
        found = await self._ask({"do": "news", "known": known})
        return None if found is None else _to_news(found)

    async def save(self, subscription: Subscription, expected: int) -> Subscription:
        begins = None if subscription.begins is None else subscription.begins.to_text()
        packed = {"subscription": subscription.to_json(with_secret=True), "begins": begins}
        saved = Subscription.from_json(await self._ask({"do": "save", **packed, "expected": expected}))
        return replace(saved, begins=subscription.begins)

    async def remove(self, name: str, expected: int) -> None:
        await self._ask({"do": "remove", "name": name, "expected": expected})

    async def close(self) -> None:
        """It is the other process's."""

    async def _ask(self, question: Message) -> Any:
        told = await self._ask_owner(question)
        if "refused" in told:
            raise KafkaError(ErrorCode(told["refused"]), told["reason"])
        if "unusable" in told:
            raise CatalogUnusableError(told["unusable"])
        if "away" in told:
            raise CatalogAwayError(told["away"])
        return told["answer"]


def _from_news(news: CatalogNews) -> Message:
    changed = [one.to_json(with_secret=True) for one in news.changed]
    begins = {one.name: one.begins.to_text() for one in news.changed if one.begins is not None}
    return {"revision": news.revision, "changed": changed, "names": sorted(news.names), "begins": begins}


def _to_news(packed: Message) -> CatalogNews:
    changed, begins = map(Subscription.from_json, packed["changed"]), packed.get("begins", {})
    whole = tuple(_with_beginnings(one, begins.get(one.name)) for one in changed)
    return CatalogNews(packed["revision"], whole, frozenset(packed["names"]))


def _with_beginnings(subscription: Subscription, text: str | None) -> Subscription:
    return replace(subscription, begins=None if text is None else Beginnings.from_text(text))
