"""What is written into a catalog is found again, by everybody, with every change seen once."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import create_engine, text

from clarion.catalog import database as database_module
from clarion.catalog.content import CatalogAwayError, CatalogUnusableError
from clarion.catalog.database import CatalogDatabase
from clarion.model.errors import KafkaError
from clarion.model.subscription import CONSUMED, PushEndpoint, Subscription
from tests.postgres import PostgresProcess

BILLING = Subscription(
    name="billing", topics=("orders", "payments"), retention_ms=CONSUMED, created_ms=1_700_000_000_000
)
PUSHED = Subscription(
    name="hook",
    pattern="orders-.*",
    filter='key == "ü"',
    push=PushEndpoint(url="https://example.org/hook", secret="whsec_" + "A" * 32, headers=(("x-team", "a b"),)),
    dead_letter_topic="lost",
    message_ttl_ms=10**12,
    per_key_order=True,
)


@pytest.fixture
def catalog(place: str) -> Iterator[CatalogDatabase]:
    opened = CatalogDatabase(place)
    yield opened
    opened.close()


def test_a_new_catalog_is_empty(catalog: CatalogDatabase):
    assert catalog.news(0) is None


@pytest.mark.parametrize("subscription", [BILLING, PUSHED])
def test_what_is_saved_is_found_again_after_a_restart(place: str, subscription: Subscription):
    first = CatalogDatabase(place)
    saved = first.save(subscription, 0)
    first.close()
    assert saved == replace(subscription, revision=1)
    second = CatalogDatabase(place)
    news = second.news(0)
    second.close()
    assert news is not None
    assert news.changed == (saved,)
    assert news.names == {subscription.name}


def test_news_are_what_changed_since(catalog: CatalogDatabase):
    billing = catalog.save(BILLING, 0)
    catalog.save(PUSHED, 0)
    news = catalog.news(1)
    assert news is not None
    assert (news.revision, [one.name for one in news.changed]) == (2, ["hook"])
    assert news.names == {"billing", "hook"}
    catalog.save(replace(billing, paused=True), billing.revision)
    catalog.remove("hook", 2)
    news = catalog.news(2)
    assert news is not None
    assert [(one.name, one.paused, one.revision) for one in news.changed] == [("billing", True, 3)]
    assert (news.revision, news.names) == (4, {"billing"})
    assert catalog.news(4) is None


def test_an_endpoint_goes_with_its_subscription(catalog: CatalogDatabase):
    pushed = catalog.save(PUSHED, 0)
    catalog.save(replace(pushed, push=None), 1)
    news = catalog.news(0)
    assert news is not None
    assert news.changed[0].push is None
    catalog.remove("hook", 2)
    assert catalog.save(replace(PUSHED, push=None), 0).push is None


def test_of_two_who_change_one_subscription_at_once_the_second_is_refused(catalog: CatalogDatabase):
    billing = catalog.save(BILLING, 0)
    catalog.save(replace(billing, paused=True), 1)
    with pytest.raises(KafkaError, match="somebody else changed"):
        catalog.save(replace(billing, window=7), 1)
    with pytest.raises(KafkaError, match="somebody else changed"):
        catalog.save(BILLING, 0)
    with pytest.raises(KafkaError, match="somebody else changed"):
        catalog.remove("billing", 1)
    assert catalog.revision() == 2, "a refused change changes nothing"


def test_an_older_copy_in_its_place_is_read_as_a_whole(catalog: CatalogDatabase):
    catalog.save(BILLING, 0)
    news = catalog.news(50)
    assert news is not None
    assert (news.revision, [one.name for one in news.changed]) == (1, ["billing"])


def test_there_are_only_so_many(catalog: CatalogDatabase, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(database_module, "SUBSCRIPTIONS_MAX", 1)
    catalog.save(BILLING, 0)
    with pytest.raises(KafkaError, match="delete one that is unused"):
        catalog.save(PUSHED, 0)


def test_more_than_one_query_holds_are_read(catalog: CatalogDatabase, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(database_module, "_ROWS_PER_QUERY", 3)
    for number in range(8):
        catalog.save(replace(PUSHED, name=f"s{number}"), 0)
    news = catalog.news(0)
    assert news is not None
    assert {one.name for one in news.changed} == news.names == {f"s{number}" for number in range(8)}
    assert all(one.push == PUSHED.push for one in news.changed)


names = st.sampled_from(["a", "b", "c"])


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(st.tuples(st.sampled_from(["save", "remove", "look"]), names, st.integers(1, 100))))
def test_a_reader_that_takes_only_news_knows_what_is_there(new_place: Callable[[], str], steps):
    catalog = CatalogDatabase(new_place())
    there: dict[str, Subscription] = {}
    seen: dict[str, Subscription] = {}
    known = 0

    def look() -> None:
        nonlocal known
        if (news := catalog.news(known)) is not None:
            known = news.revision
            seen.update({one.name: one for one in news.changed})
            for gone in seen.keys() - news.names:
                del seen[gone]

    try:
        for step, name, window in steps:
            revision = there[name].revision if name in there else 0
            if step == "save":
                there[name] = catalog.save(Subscription(name=name, topics=("t",), window=window), revision)
            elif step == "remove" and name in there:
                catalog.remove(name, there.pop(name).revision)
            elif step == "look":
                look()
        look()
        assert seen == there
    finally:
        catalog.close()


def test_the_file_is_its_owners_alone_and_nobody_else_gets_in(tmp_path: Path):
    path = tmp_path / "catalog.db"
    first = CatalogDatabase(str(path))
    first.save(BILLING, 0)
    assert {one.stat().st_mode & 0o777 for one in tmp_path.iterdir()} == {0o600}
    with pytest.raises(CatalogAwayError, match="locked"):
        CatalogDatabase(str(path))
    first.close()


def test_a_damaged_file_is_found_when_it_is_opened(tmp_path: Path):
    path = tmp_path / "catalog.db"
    first = CatalogDatabase(str(path))
    first.save(BILLING, 0)
    first.close()
    content = bytearray(path.read_bytes())
    content[4096:8192] = b"\xff" * 4096
    path.write_bytes(content)
    with pytest.raises(CatalogUnusableError, match=r"is damaged.*move it away"):
        CatalogDatabase(str(path))


def test_what_is_no_database_is_left_alone(tmp_path: Path):
    path = tmp_path / "catalog.db"
    path.write_bytes(b"something else" * 1_000)
    with pytest.raises(CatalogUnusableError, match="is damaged"):
        CatalogDatabase(str(path))
    assert path.read_bytes() == b"something else" * 1_000


def test_what_a_removed_catalog_left_does_not_get_into_the_next(tmp_path: Path):
    (tmp_path / "catalog.db-wal").write_bytes(b"rubbish")
    CatalogDatabase(str(tmp_path / "catalog.db")).close()


def test_a_row_that_cannot_be_read_is_named(place: str):
    catalog = CatalogDatabase(place)
    catalog.save(BILLING, 0)
    catalog.close()
    engine = create_engine(place if "://" in place else f"sqlite:///{place}")
    with engine.begin() as connection:
        connection.execute(text("UPDATE subscriptions SET topics = 'no list'"))
    engine.dispose()
    catalog = CatalogDatabase(place)
    with pytest.raises(CatalogUnusableError, match="row of 'billing' cannot be read"):
        catalog.news(0)
    catalog.close()


def test_a_postgresql_that_went_away_is_found_again(postgres_server: PostgresProcess):
    catalog = CatalogDatabase(postgres_server.new_database())
    catalog.save(BILLING, 0)
    postgres_server.stop()
    try:
        with pytest.raises(CatalogAwayError):
            catalog.news(0)
    finally:
        postgres_server.start()
    news = catalog.news(0)
    catalog.close()
    assert news is not None
    assert news.names == {"billing"}


def test_a_password_is_not_in_the_error(postgres_server: PostgresProcess):
    for place in (
        f"postgresql+psycopg://clarion:s3cret@127.0.0.1:{postgres_server.port}/none",
        "mysql://clarion:s3cret@127.0.0.1/none",
        "postgresql://clarion:s3cret@127.0.0.1:port/none",
    ):
        with pytest.raises((CatalogAwayError, CatalogUnusableError)) as refused:
            CatalogDatabase(place)
        assert "s3cret" not in str(refused.value)
