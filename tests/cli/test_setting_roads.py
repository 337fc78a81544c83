"""A setting is declared once; the command line, a file, the environment, DescribeConfigs, alteration at run time and
the documentation take it from there. Each of them takes every setting, and nothing else.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from kio.schema.describe_configs.v4.request import DescribeConfigsRequest, DescribeConfigsResource
from kio.schema.incremental_alter_configs.v1.request import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)

from clarion.broker.config import BrokerConfig
from clarion.broker.settings import BROKER_SETTINGS, OLD_NAMES, OWN_SETTINGS
from clarion.cli.flags import parse_flags
from clarion.cli.reference import DOCS
from clarion.cli.settings import env_name, load
from clarion.model.broker_defaults import in_topic_names
from clarion.model.errors import ErrorCode
from clarion.model.setting_kinds import Kind, Setting, write_value
from tests.broker.harness import running

BROKER = 4
COMPOSED = {
    "log.dirs": "/somewhere/else",
    "listeners": "PLAINTEXT://127.0.0.1:1234",
    "advertised.listeners": "PLAINTEXT://broker.example:99",
    "clarion.http.listen": "127.0.0.1:1235",
    "clarion.cluster": "file:/somewhere/else",
    "clarion.catalog": "postgresql://clarion@127.0.0.1/clarion",
}
SENSITIVE = {name for name, declared in BROKER_SETTINGS.items() if declared.is_sensitive and name not in COMPOSED}


def another_value(declared: Setting) -> str:
    """A value that the setting may have and does not have by itself."""
    if declared.name in COMPOSED:
        return COMPOSED[declared.name]
    if declared.is_sensitive:
        return __file__
    return next((text for text in _candidates(declared) if _is_legal(declared, text)), write_value(declared.default))


def _candidates(declared: Setting) -> list[str]:
    match declared.kind:
        case Kind.BOOLEAN:
            return [str(not declared.default).lower()]
        case Kind.STRING | Kind.LIST:
            named = re.findall(r"`([^`]+)`", getattr(declared.check, "words", ""))
            return [text for text in (*named, "some-group") if text != write_value(declared.default)]
        case Kind.DOUBLE:
            return ["0.5"]
    assert isinstance(declared.default, int)
    return [str(declared.default + 1), str(declared.default - 1), "2"]


def _is_legal(declared: Setting, text: str) -> bool:
    try:
        if declared.name in OWN_SETTINGS:
            declared.read(text)
        else:
            in_topic_names({declared.name: text})
    except Exception:
        return False
    return True


def held(config: BrokerConfig, name: str) -> object:
    """What a configuration holds for a setting, by whatever road it came."""
    if name in OWN_SETTINGS:
        return config.listeners if name in SENSITIVE else OWN_SETTINGS[name].value(config)
    return config.durability if name == "clarion.durability" else dict(config.topic_defaults)


def by_flag(name: str, text: str, folder: Path) -> BrokerConfig:
    return load(None, {}, parse_flags([*_along(name), "--set", f"{name}={text}"])).config


def by_file(name: str, text: str, folder: Path) -> BrokerConfig:
    file = folder / "clarion.toml"
    file.write_text(f'"{name}" = "{text}"')
    return load(str(file), {}, parse_flags(_along(name))).config


def by_dotted_key(name: str, text: str, folder: Path) -> BrokerConfig:
    file = folder / "clarion.toml"
    file.write_text(f'{name} = "{text}"')
    return load(str(file), {}, parse_flags(_along(name))).config


def by_environment(name: str, text: str, folder: Path) -> BrokerConfig:
    return load(None, {env_name(name): text}, parse_flags(_along(name))).config


def _along(name: str) -> list[str]:
    """A certificate needs a key, and the other way round."""
    others = SENSITIVE - {name} if name in SENSITIVE else set()
    return [word for other in sorted(others) for word in ("--set", f"{other}={__file__}")]


@pytest.mark.parametrize("name", BROKER_SETTINGS)
def test_command_line_file_and_environment_take_every_setting_and_mean_the_same(name, tmp_path):
    text = another_value(BROKER_SETTINGS[name])
    told = [held(road(name, text, tmp_path), name) for road in (by_flag, by_file, by_dotted_key, by_environment)]
    assert told == [told[0]] * 4
    if BROKER_SETTINGS[name].only is None and name != "preallocate":
        assert told[0] != held(BrokerConfig(data_dir="clarion-data"), name)


async def test_describe_configs_tells_every_setting_and_no_other(tmp_path):
    async with running(tmp_path) as node:
        resource = DescribeConfigsResource(resource_type=BROKER, resource_name="1", configuration_keys=None)
        request = DescribeConfigsRequest(resources=(resource,), include_synonyms=True, include_documentation=True)
        told = {each.name: each for each in (await node.ask(request, 4)).results[0].configs}
    assert told.keys() == BROKER_SETTINGS.keys()
    assert {name for name, each in told.items() if each.is_sensitive} == SENSITIVE | {"clarion.catalog"}
    assert {name for name, each in told.items() if each.read_only} == {
        name for name, declared in BROKER_SETTINGS.items() if not declared.is_dynamic
    }
    assert all(each.documentation for each in told.values())


async def test_alteration_at_run_time_takes_what_is_declared_dynamic_and_refuses_the_rest_by_name(tmp_path):
    async with running(tmp_path) as node:
        refused = set()
        for name, declared in BROKER_SETTINGS.items():
            config = AlterableConfig(name=name, config_operation=0, value=another_value(declared))
            resource = AlterConfigsResource(resource_type=BROKER, resource_name="1", configs=(config,))
            request = IncrementalAlterConfigsRequest(resources=(resource,), validate_only=True)
            reply = (await node.ask(request, 1)).responses[0]
            if reply.error_code == ErrorCode.INVALID_REQUEST and f"dynamically: [{name}]" in reply.error_message:
                refused.add(name)
            else:
                assert (name, reply.error_code, reply.error_message) == (name, 0, None)
    assert refused == {name for name, declared in BROKER_SETTINGS.items() if not declared.is_dynamic}


def test_the_documentation_has_every_setting_with_its_sentence_and_no_other():
    text = (DOCS / "configuration.md").read_text()
    rows = re.findall(r"^\| `([a-z0-9.]+)` \| `(CLARION_[A-Z0-9_]+)` \|", text, re.MULTILINE)
    assert dict(rows) == {name: env_name(name) for name in OWN_SETTINGS}
    topics = text.partition(": topic settings -->")[2]
    inherited = {
        name
        for row in re.findall(r"^\| `[a-z0-9.]+` \| ((?:`[a-z0-9.]+`(?:, )?)+) \|", topics, re.MULTILINE)
        for name in re.findall(r"`([a-z0-9.]+)`", row)
    }
    assert inherited == BROKER_SETTINGS.keys() - OWN_SETTINGS.keys()
    for own in OWN_SETTINGS.values():
        assert own.declared.doc in text
    for declared in BROKER_SETTINGS.values():
        for old in declared.old_names:
            assert f"| `{old}` | `{declared.name}` |" in text


def test_every_declaration_says_what_it_is_for():
    for declared in BROKER_SETTINGS.values():
        assert declared.doc.endswith("."), declared.name
        assert len(declared.doc) > 15, declared.name
        declared.read(write_value(declared.default))


def test_an_old_name_means_a_setting_that_there_is():
    assert {*OLD_NAMES.values()} <= BROKER_SETTINGS.keys()
