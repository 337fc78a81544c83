"""The table of APIs against kio's schema."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import kio.schema
import pytest

from clarion.wire.apis import ADVERTISED, APIS, FETCH, OFFSET_DELETE, PRODUCE

SCHEMA = Path(next(iter(kio.schema.__path__)))


@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.name)
def test_kio_knows_every_version_and_agrees_on_key_and_flexibility(api):
    folders = {int(folder.name[1:]) for folder in (SCHEMA / api.snake_name).glob("v*")}
    assert set(range(api.min_version, api.max_version + 1)) <= folders
    for version in range(api.min_version, api.max_version + 1):
        request = getattr(import_module(f"kio.schema.{api.snake_name}.v{version}.request"), api.name + "Request")
        assert (request.__api_key__, request.__flexible__) == (api.key, api.is_flexible(version))


def test_trap_1_produce_is_advertised_from_0_and_spoken_from_3():
    assert (PRODUCE, 0, 13) in ADVERTISED
    assert not APIS[PRODUCE].speaks(2)
    assert APIS[PRODUCE].speaks(3)


def test_every_other_api_is_advertised_as_it_is_spoken():
    assert all(APIS[key].min_version == low for key, low, _ in ADVERTISED if key != PRODUCE)
    assert not APIS[OFFSET_DELETE].is_flexible(0)


def test_every_bridged_api_has_its_neutral_messages():
    for api in APIS.values():
        if api.key not in (PRODUCE, FETCH):
            assert api.request.__name__ == f"{api.name}Request"
            assert api.response.__name__ == f"{api.name}Response"


def test_neither_the_table_nor_the_hot_codecs_load_kio():
    program = (
        "import sys; from clarion.wire import apis, bridge, frames, produce, fetch, metadata, api_versions;"
        "sys.exit(any(name.split('.')[0] == 'kio' for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_the_bridge_loads_one_version_of_kio_and_nothing_that_kio_only_wants_for_tests():
    program = (
        "import sys; from clarion.wire import api_versions; api_versions.encode_reply(3);"
        "unwanted = [n for n in sys.modules if n == 'hypothesis' or n.startswith('kio.schema.api_versions.v4')];"
        "sys.exit(str(unwanted) if unwanted else 0)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
