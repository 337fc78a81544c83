"""The catalog of several brokers on one machine: whoever owns the store has it open, the others ask it."""

from pathlib import Path

import pytest

from clarion.catalog.content import CatalogAwayError
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
