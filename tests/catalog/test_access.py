"""A catalog from the event loop: one thread asks it, and nothing waits for it without end."""

import asyncio
import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest

from clarion.catalog.access import OpenCatalog
from clarion.catalog.content import CatalogAwayError, CatalogUnusableError
from clarion.catalog.messages import AskedCatalog, answer
from clarion.model.beginnings import Beginnings
from clarion.model.errors import ErrorCode, KafkaError
from clarion.model.subscription import FIELD_NAMES, PushEndpoint, Subscription

BILLING = Subscription(name="billing", topics=("orders",))
PUSHED = replace(
    BILLING,
    name="hook",
    push=PushEndpoint(url="https://example.org", secret="whsec_" + "A" * 32, headers=(("a", "b"),)),
)


async def test_what_is_saved_is_news_to_the_next_who_opens_it(place: str):
    first = OpenCatalog(place)
    saved = await first.save(BILLING, 0)
    await first.close()
    second = OpenCatalog(place)
    news = await second.news(0)
    await second.close()
    assert news is not None
    assert news.changed == (saved,)


async def test_whoever_only_looks_makes_no_file(tmp_path: Path):
    catalog = OpenCatalog(str(tmp_path / "catalog.db"))
    assert await catalog.news(0) is None
    await catalog.close()
    assert os.listdir(tmp_path) == []


async def test_a_catalog_that_was_removed_is_empty(tmp_path: Path):
    news = await OpenCatalog(str(tmp_path / "catalog.db")).news(7)
    assert news is not None
    assert (news.revision, news.names) == (0, frozenset())


def test_a_catalog_without_a_file_imports_nothing(tmp_path: Path):
    program = """
import asyncio, sys
from clarion.catalog.access import OpenCatalog
import clarion.catalog.messages, clarion.broker.server, clarion.cluster.local_store
assert asyncio.run(OpenCatalog(sys.argv[1]).news(0)) is None
print([name for name in ("sqlalchemy", "alembic", "psycopg", "cel") if name in sys.modules])
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "catalog.db")], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


async def test_one_thread_asks_and_it_is_not_the_event_loops(place: str):
    catalog = OpenCatalog(place)
    threads = set(await asyncio.gather(*(catalog._in_thread(lambda _: threading.get_ident()) for _ in range(20))))
    await catalog.close()
    assert len(threads) == 1
    assert threading.get_ident() not in threads


async def test_who_waits_for_a_catalog_that_does_not_answer_hears_of_it(tmp_path: Path):
    catalog = OpenCatalog(str(tmp_path / "catalog.db"), answer_seconds=0.05)
    is_over = threading.Event()
    with pytest.raises(CatalogAwayError, match="does not answer"):
        await catalog._in_thread(lambda _: is_over.wait(60))
    is_over.set()
    await catalog.close()


async def test_only_so_many_wait_for_one_that_does_not_answer(tmp_path: Path):
    catalog = OpenCatalog(str(tmp_path / "catalog.db"))
    is_over = threading.Event()
    waiting = [asyncio.ensure_future(catalog._in_thread(lambda _: is_over.wait(60))) for _ in range(200)]
    await asyncio.sleep(0)
    with pytest.raises(CatalogAwayError, match="too many wait"):
        await catalog.save(BILLING, 0)
    is_over.set()
    await asyncio.gather(*waiting)
    await catalog.close()


async def test_a_catalog_is_asked_through_another_process_in_the_same_words(place: str):
    owner = OpenCatalog(place)
    asked = AskedCatalog(lambda question: answer(owner, question))
    saved = await asked.save(PUSHED, 0)
    assert saved == replace(PUSHED, revision=1)
    assert await asked.news(0) == await owner.news(0)
    assert await asked.news(1) is None
    with pytest.raises(KafkaError, match="somebody else") as refused:
        await asked.remove("hook", 7)
    assert refused.value.code == ErrorCode.UNKNOWN_SERVER_ERROR
    await asked.remove("hook", 1)
    news = await asked.news(1)
    assert news is not None
    assert news.names == frozenset()
    await owner.close()


async def test_a_process_of_the_first_version_is_told_nothing_that_it_would_refuse(place: str):
    """Its `from_json` knows no field but those; where subscriptions begin stands beside them."""
    said = []

    async def listen(question):
        said.append(question)
        said.append(told := await answer(owner, question))
        return told

    owner = OpenCatalog(place)
    begun = replace(BILLING, begins=Beginnings({uuid4(): {0: 5, 11: 7}}))
    asked = AskedCatalog(listen)
    assert await asked.save(begun, 0) == replace(begun, revision=1)
    assert await asked.news(0) == await owner.news(0)
    save, saved, _, news = said
    for one in (save["subscription"], saved["answer"], *news["answer"]["changed"]):
        assert one.keys() == FIELD_NAMES
    elder = {key: value for key, value in save.items() if key != "begins"}
    told = await answer(owner, {**elder, "subscription": {**elder["subscription"], "name": "other"}, "expected": 0})
    assert Subscription.from_json(told["answer"]).begins is None
    await owner.close()


async def test_what_is_wrong_with_a_catalog_is_told_to_who_asks_through_another(tmp_path: Path):
    (tmp_path / "catalog.db").write_bytes(b"something else" * 1_000)
    owner = OpenCatalog(str(tmp_path / "catalog.db"))
    asked = AskedCatalog(lambda question: answer(owner, question))
    with pytest.raises(CatalogUnusableError, match="is damaged"):
        await asked.news(0)
    with pytest.raises(CatalogAwayError, match="another version"):
        await AskedCatalog(lambda question: answer(owner, {**question, "do": "dance"})).news(0)
    await owner.close()
