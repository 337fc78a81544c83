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


def test_messages_are_read_and_written_where_kio_is_not_installed():
    program = (
        "import sys; sys.modules['kio'] = None\n"
        "from clarion.wire import api_versions, bridge\n"
        "from clarion.wire.apis import API_VERSIONS, APIS\n"
        "body = api_versions.encode_reply(3)\n"
        "reply = bridge.decode(APIS[API_VERSIONS].response, API_VERSIONS, 3, 'response', body)\n"
        "sys.exit(0 if reply.api_keys else 1)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
