"""Settings that are changed while the cluster runs, by kind and name: of brokers, groups, loggers, client metrics.

    settings = await SettingsRegistry.load(store)
    settings.get("group", "orders")                       # {} if nobody has set anything
    await settings.change("group", "orders", lambda now: {**now, "consumer.session.timeout.ms": "9000"})

The empty name stands for all of a kind, as Kafka's default broker does. What a setting means, and whether a value may
be, is known to whoever changes it; here it is a text with a name.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from clarion.cluster.changes import change
from clarion.cluster.coordination import (
    ABSENT,
    Change,
    Compare,
    CoordinationStore,
    Delete,
    Entry,
    Operation,
    Put,
    Range,
    Revision,
    absent,
)
from clarion.model.errors import ErrorCode, KafkaError

Settings = Mapping[str, str]
ChangeSettings = Callable[[Settings], Settings]  # from what is set to what shall be set, or a KafkaError

_PREFIX: Final = "settings/"
_NAMES_MAX: Final = 10_000  # of one kind: all of them are in memory, and any client may name a group
_BYTES_MAX: Final = 64 * 1024  # of one name's settings: far more than all that Kafka has, and little in a transaction
_NOTHING: Final[Settings] = MappingProxyType({})


class SettingsRegistry:
    """Made by `load`. Read from memory; a change is in the store before anybody can read it here."""

    def __init__(self, store: CoordinationStore) -> None:
        self._store = store
        self._settings: dict[str, dict[str, Settings]] = {}  # by kind and name
        self._revisions: dict[str, Revision] = {}
        self._changing = asyncio.Lock()
        self._listeners: list[Callable[[str, str], None]] = []

    @classmethod
    async def load(cls, store: CoordinationStore) -> SettingsRegistry:
        registry = cls(store)
        await registry._read_all()
        return registry

    def get(self, kind: str, name: str) -> Settings:
        return self._settings.get(kind, {}).get(name, _NOTHING)

    def names(self, kind: str) -> list[str]:
        """Those for which something is set, sorted."""
        return sorted(self._settings.get(kind, {}))

    def on_change(self, callback: Callable[[str, str], None]) -> None:
        """Called with kind and name after every change, also of another broker."""
        self._listeners.append(callback)

    def take(self, change: Change) -> None:
        """What the store tells of a change, by whomever."""
        for event in change.events:
            if event.key.startswith(_PREFIX):
                self._hear(event.key, event.entry, change.revision)

    def take_all(self, content: Range) -> None:
        """All that the store holds now."""
        said = {one.key: one for one in content.entries if one.key.startswith(_PREFIX)}
        for key in [*said, *(key for key in list(self._revisions) if key not in said)]:
            entry = said.get(key)
            self._hear(key, entry, entry.mod_revision if entry else content.revision)

    def _hear(self, key: str, entry: Entry | None, revision: Revision) -> None:
        if revision <= self._revisions.get(key, ABSENT):
            return  # done here, and known since; what was unset may have been set again here
        kind, _, name = key.removeprefix(_PREFIX).partition("/")
        if entry is None and name not in self._settings.get(kind, {}):
            return
        self._remember(kind, name, _parse(entry) if entry else {}, revision)
        for callback in self._listeners:
            callback(kind, name)

    async def change(self, kind: str, name: str, to: ChangeSettings) -> Settings:
        """Read, change and write as one step, so that of two changes at once none is lost. An empty result unsets."""
        assert "/" not in kind
        async with self._changing:
            wanted = dict(to(self.get(kind, name)))
            if wanted != self.get(kind, name):
                await self._save(kind, name, wanted)
                for callback in self._listeners:
                    callback(kind, name)
            return self.get(kind, name)

    async def _save(self, kind: str, name: str, wanted: dict[str, str]) -> None:
        key = f"{_PREFIX}{kind}/{name}"
        operation = self._operation(kind, name, key, wanted)

        def follow(revision: Revision) -> None:
            self._remember(kind, name, wanted, revision)

        compare = Compare(key, self._revisions[key]) if key in self._revisions else absent(key)
        if not await change(self._store, [compare], [operation], follow):
            self.take_all(await self._store.range(_PREFIX))
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"somebody else changed the settings of {kind} {name!r}")

    def _operation(self, kind: str, name: str, key: str, wanted: dict[str, str]) -> Operation:
        if not wanted:
            return Delete(key)
        value = json.dumps(wanted, separators=(",", ":")).encode()
        if len(value) > _BYTES_MAX:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"{len(value)} bytes of settings; at most {_BYTES_MAX} are kept")
        known = self._settings.get(kind, {})
        if name not in known and len(known) >= _NAMES_MAX:
            raise KafkaError(ErrorCode.POLICY_VIOLATION, f"at most {_NAMES_MAX} of kind {kind} have settings")
        return Put(key, value)

    async def _read_all(self) -> None:
        self._settings.clear()
        self._revisions.clear()
        for entry in (await self._store.range(_PREFIX)).entries:
            kind, _, name = entry.key.removeprefix(_PREFIX).partition("/")
            self._remember(kind, name, _parse(entry), entry.mod_revision)

    def _remember(self, kind: str, name: str, settings: dict[str, str], revision: Revision) -> None:
        key = f"{_PREFIX}{kind}/{name}"
        if settings:
            self._settings.setdefault(kind, {})[name] = MappingProxyType(settings)
            self._revisions[key] = revision
        else:
            self._settings.get(kind, {}).pop(name, None)
            self._revisions.pop(key, None)


def _parse(entry: Entry) -> dict[str, str]:
    return {str(name): str(value) for name, value in json.loads(entry.value).items()}
