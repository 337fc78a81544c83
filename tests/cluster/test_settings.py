"""Settings by kind and name: changed one after the other, told to whoever listens, there after a restart."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from clarion.cluster.coordination import Change, KeyEvent
from clarion.cluster.settings import SettingsRegistry
from clarion.model.errors import ErrorCode, KafkaError
from tests.cluster.stores import OpenStore, simulated, sqlite_in


@pytest.fixture(params=["sqlite", "simulated"])
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> OpenStore:
    return sqlite_in(tmp_path) if request.param == "sqlite" else simulated()


async def test_what_is_set_is_there_after_a_restart_and_what_is_unset_is_not(open_store):
    store = await open_store()
    settings = await SettingsRegistry.load(store)
    assert settings.get("group", "orders") == {}
    await settings.change("group", "orders", lambda now: {**now, "a": "1"})
    await settings.change("group", "orders", lambda now: {**now, "b": "2"})
    await settings.change("group", "with/slash", lambda now: {"a": "ü"})
    await settings.change("broker", "", lambda now: {"c": "3"})
    await settings.change("broker", "1", lambda now: {"c": "4"})
    await settings.change("broker", "1", lambda now: {})
    await store.close()
    store = await open_store()
    again = await SettingsRegistry.load(store)
    assert again.get("group", "orders") == {"a": "1", "b": "2"}
    assert again.get("group", "with/slash") == {"a": "ü"}
    assert again.get("broker", "") == {"c": "3"}
    assert (again.names("group"), again.names("broker")) == (["orders", "with/slash"], [""])
    await store.close()


async def test_of_many_changes_at_once_none_is_lost(open_store):
    store = await open_store()
    settings = await SettingsRegistry.load(store)
    await asyncio.gather(
        *(settings.change("broker", "1", lambda now, n=number: {**now, str(n): "x"}) for number in range(30))
    )
    assert len(settings.get("broker", "1")) == 30
    await store.close()


async def test_listeners_hear_of_every_change_that_is_one():
    settings = await SettingsRegistry.load(await simulated()())
    heard: list[tuple[str, str]] = []
    settings.on_change(lambda kind, name: heard.append((kind, name)))
    await settings.change("group", "g", lambda now: {"a": "1"})
    await settings.change("group", "g", lambda now: {"a": "1"})
    await settings.change("group", "g", lambda now: {})
    assert heard == [("group", "g"), ("group", "g")]


async def test_a_change_that_is_refused_changes_nothing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("clarion.cluster.settings._NAMES_MAX", 2)
    settings = await SettingsRegistry.load(await simulated()())
    await settings.change("group", "g", lambda now: {"a": "1"})
    await settings.change("group", "h", lambda now: {"a": "1"})

    def refuse(now):
        raise KafkaError(ErrorCode.INVALID_CONFIG, "no")

    for name, change in (("g", refuse), ("g", lambda now: {"a": "x" * 100_000}), ("i", lambda now: {"a": "1"})):
        with pytest.raises(KafkaError):
            await settings.change("group", name, change)
    assert {name: dict(settings.get("group", name)) for name in settings.names("group")} == {
        "g": {"a": "1"},
        "h": {"a": "1"},
    }


async def test_what_was_read_cannot_be_changed_in_place():
    settings = await SettingsRegistry.load(await simulated()())
    await settings.change("group", "g", lambda now: {"a": "1"})
    with pytest.raises(TypeError):
        settings.get("group", "g")["a"] = "2"


async def test_what_is_set_again_here_outlives_the_late_news_that_it_was_unset():
    store = await simulated()()
    settings = await SettingsRegistry.load(store)
    await settings.change("broker", "1", lambda now: {"a": "1"})
    await settings.change("broker", "1", lambda now: {})
    unset_at = (await store.range("")).revision
    await settings.change("broker", "1", lambda now: {"a": "2"})
    settings.take(Change(unset_at, (KeyEvent("settings/broker/1", None),)))
    assert settings.get("broker", "1") == {"a": "2"}


async def test_who_loses_against_another_broker_hears_what_that_one_set():
    store = await simulated()()
    ours, theirs = await SettingsRegistry.load(store), await SettingsRegistry.load(store)
    heard: list[tuple[str, str]] = []
    ours.on_change(lambda kind, name: heard.append((kind, name)))
    await theirs.change("broker", "", lambda now: {"a": "1"})
    with pytest.raises(KafkaError, match="somebody else changed"):
        await ours.change("broker", "", lambda now: {"a": "2"})
    assert (ours.get("broker", ""), heard) == ({"a": "1"}, [("broker", "")])
