"""The catalog of several brokers on one machine: whoever owns the store has it open, the others ask it."""

import asyncio
import threading
from pathlib import Path

import pytest

from clarion.catalog.access import OpenCatalog
from clarion.catalog.content import CatalogAwayError
from clarion.cluster.coordination import Put
from clarion.cluster.local_store import LocalStore
from clarion.model.subscription import Subscription
from tests.cluster.stores import no_failure

BILLING = Subscription(name="billing", topics=("orders",))


async def test_who_owns_the_store_and_who_asks_it_see_the_same(tmp_path: Path):
    owner = await LocalStore.open(str(tmp_path), no_failure)
    other = await LocalStore.open(str(tmp_path), no_failure)
    assert await other.catalog.news(0) is None
    assert not (tmp_path / "catalog.db").exists(), "who only looks makes no file"
    saved = await other.catalog.save(BILLING, 0)
    for store in (owner, other):
        news = await store.catalog.news(0)
        assert news is not None
        assert news.changed == (saved,)
    await other.close()
    await owner.close()


async def test_the_next_owner_has_what_the_last_one_saved(tmp_path: Path):
    owner = await LocalStore.open(str(tmp_path), no_failure)
    other = await LocalStore.open(str(tmp_path), no_failure)
    saved = await owner.catalog.save(BILLING, 0)
    await owner.close()
    news = await other.catalog.news(0)
    assert news is not None
    assert news.changed == (saved,)
    await other.catalog.remove("billing", saved.revision)
    await other.close()
    with pytest.raises(CatalogAwayError, match="closed"):
        await other.catalog.news(0)


async def test_the_leases_of_who_has_gone_end_at_once_though_the_catalog_still_works_on_its_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    goes_on, has_begun = threading.Event(), threading.Event()

    def stuck(_catalog: OpenCatalog, _work: object) -> None:
        has_begun.set()
        goes_on.wait(60)  # as on a disk that stands still, or behind a lock of somebody who looks into the file

    monkeypatch.setattr(OpenCatalog, "_do", stuck)
    owner = await LocalStore.open(str(tmp_path), no_failure)
    other = await LocalStore.open(str(tmp_path), no_failure)
    lease = await other.grant_lease(60)
    await other.transact((), [Put("brokers/1", b"", lease)])
    asking = asyncio.ensure_future(other.catalog.save(BILLING, 0))
    while not has_begun.is_set():
        await asyncio.sleep(0.01)
    await other.close()
    try:
        async with asyncio.timeout(10):
            while await owner.get("brokers/1") is not None:
                await asyncio.sleep(0.01)
    finally:
        goes_on.set()
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await owner.close()
