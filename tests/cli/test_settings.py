"""Settings from file, environment and flags; whatever makes no sense is refused by name."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from clarion.broker.config import BrokerConfig, Durability, Limits, ListenerConfig, TlsConfig
from clarion.cli.errors import CliError
from clarion.cli.serve import parse_flags
from clarion.cli.setting_table import BROKER_NAMES, BY_NAME, LIMIT_NAMES, SETTINGS
from clarion.cli.settings import load


def settings(toml: str = "", environment: dict[str, str] | None = None, flags: list[str] | None = None, *, folder=None):
    file = None
    if toml:
        file = str(folder / "clarion.toml")
        Path(file).write_text(toml)
    given = parse_flags(flags or [])
    return load(file or given["config"], environment or {}, given)


def test_with_nothing_said_a_broker_has_its_defaults():
    loaded = settings()
    expected = BrokerConfig(data_dir=str(Path("clarion-data").absolute()))
    assert loaded.config == expected
    assert (loaded.log_format, loaded.log_level) == ("text", "info")


def test_flags_win_over_the_environment_and_that_over_the_file(tmp_path):
    toml = 'node_id = 1\ndefault_partitions = 1\ndurability = "page-cache"'
    loaded = settings(
        toml,
        {"CLARION_NODE_ID": "2", "CLARION_DEFAULT_PARTITIONS": "2", "HOME": "/root"},
        ["--node-id", "3"],
        folder=tmp_path,
    )
    assert (loaded.config.node_id, loaded.config.default_partitions) == (3, 2)
    assert loaded.config.durability is Durability.PAGE_CACHE


def test_every_field_of_the_broker_and_its_limits_can_be_set():
    special = {"data_dir", "listeners", "metrics_host", "metrics_port", "durability", "topic_defaults", "limits"}
    assert {each.name for each in fields(BrokerConfig)} == special | set(BROKER_NAMES)
    assert {each.name for each in fields(Limits)} == set(LIMIT_NAMES)


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda each: each.name)
def test_every_default_makes_sense_to_its_own_setting(setting):
    if setting.default is not None:
        setting.kind.read(setting.default)


def test_topic_defaults_go_by_kafkas_names_from_everywhere(tmp_path):
    toml = '[topic_defaults]\n"retention.ms" = 1000\nsegment.bytes = 4096\n"cleanup.policy" = ["compact", "delete"]'
    loaded = settings(
        toml,
        {"CLARION_TOPIC_DEFAULT_RETENTION_MS": "2000"},
        ["--set", "topic_defaults.max.message.bytes=99999"],
        folder=tmp_path,
    )
    assert loaded.config.topic_defaults == {
        "retention.ms": "2000",
        "segment.bytes": "4096",
        "cleanup.policy": "compact,delete",
        "max.message.bytes": "99999",
    }


def test_topic_defaults_are_taken_by_the_names_of_kafkas_brokers_too(tmp_path):
    toml = '[topic_defaults]\n"log.retention.hours" = 2\n"log.retention.minutes" = 3\n"retention.bytes" = 5'
    loaded = settings(toml, {}, ["--set", "topic_defaults.log.retention.bytes=7"], folder=tmp_path)
    assert loaded.config.topic_defaults == {"retention.ms": "180000", "retention.bytes": "7"}
    with pytest.raises(CliError, match=r"topic_defaults: .*log\.retention\.hour\b.*did you mean"):
        settings('[topic_defaults]\n"log.retention.hour" = 2', {}, [], folder=tmp_path)


def test_several_listeners_each_have_their_own_address_and_tls(tmp_path):
    for name in ("cert", "key", "ca"):
        (tmp_path / name).write_text("")
    toml = f"""
insecure = true
[[listeners]]
listen = "127.0.0.1:9092"
[[listeners]]
listen = "[::]:9093"
advertise = "broker.example.org:9443"
tls_certificate = "{tmp_path}/cert"
tls_key = "{tmp_path}/key"
tls_client_ca = "{tmp_path}/ca"
"""
    tls = TlsConfig(f"{tmp_path}/cert", f"{tmp_path}/key", f"{tmp_path}/ca")
    assert settings(toml, folder=tmp_path).config.listeners == (
        ListenerConfig("127.0.0.1", 9092),
        ListenerConfig("::", 9093, "broker.example.org", 9443, tls),
    )
    replaced = settings(toml, {"CLARION_LISTEN": "127.0.0.1:1,localhost:2"}, folder=tmp_path)
    assert [each.port for each in replaced.config.listeners] == [1, 2]


def test_flags_repeat_for_several_listeners():
    flags = ["--listen", "127.0.0.1:0", "--listen", "127.0.0.1:9093", "--advertise", "a:0", "--advertise", "b:7"]
    assert settings(flags=flags).config.listeners == (
        ListenerConfig("127.0.0.1", 0, "a", None),
        ListenerConfig("127.0.0.1", 9093, "b", 7),
    )


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (["--listen", "0.0.0.0:9092"], "--insecure"),
        (["--metrics", "0.0.0.0:9100"], "--insecure"),
        (["--listen", "0.0.0.0:9092", "--insecure"], "--advertise"),
        (["--listen", "nine"], "HOST:PORT"),
        (["--listen", "127.0.0.1:99999"], "HOST:PORT"),
        (["--listen", "no-such-host.invalid:1"], "no host called"),
        (["--advertise", "a:1", "--advertise", "b:1"], "one for each"),
        (["--durability", "maybe"], "fsync or page-cache"),
        (["--node-id", "-1"], "whole number"),
        (["--log-level", "chatty"], "debug or info"),
        (["--data-dir", ""], "--data-dir"),
        (["--tls-key", "/dev/null"], "both tls_certificate and tls_key"),
        (["--tls-key", "/dev/null", "--tls-certificate", "/no/such"], "cannot read /no/such"),
        (["--set", "nonsense"], "NAME=VALUE"),
        (["--set", "limits.conections_max=5"], "did you mean limits.connections_max?"),
        (["--set", "limits.connections_max=0"], "from 1"),
        (["--set", "limits.idle_seconds_max=nan"], "seconds"),
        (["--set", "auto_create_topics=perhaps"], "true or false"),
        (["--set", "group_min_session_timeout_ms=99999999"], "group_max_session_timeout_ms"),
        (["--set", "topic_defaults.retention.m=5"], "retention.ms"),
        (["--set", "topic_defaults.retention.ms=soon"], "retention.ms"),
        (["--config", "/no/such/file"], "/no/such/file"),
        (["--nonsense"], "--nonsense"),
        (["surplus"], "surplus"),
    ],
)
def test_a_senseless_flag_is_refused_by_name(flags, complaint):
    with pytest.raises(CliError) as refused:
        settings(flags=flags)
    assert complaint in str(refused.value)


@pytest.mark.parametrize(
    ("toml", "complaint"),
    [
        ("nod_id = 1", "did you mean node_id?"),
        ("node_id = true", "node_id = True"),
        ("node_id = 1.5", "whole number"),
        ("[limit]\nconnections_max = 1", "limits.connections_max"),
        ("topic_defaults = 3", "must be a table"),
        ("[topic_defaults]\nretention.mss = 3", "retention.ms"),
        ('listeners = "x"', "[[listeners]]"),
        ('[[listeners]]\nlisten = "127.0.0.1:1"\ntls_cert = "x"', "tls_certificate"),
        ('[[listeners]]\nadvertise = "127.0.0.1:1"', "say where"),
        ('[[listeners]]\nlisten = "x"', "listeners[1].listen"),
        ('listen = "127.0.0.1:1"\n[[listeners]]\nlisten = "127.0.0.1:2"', "not both"),
        ("= 1", "is not TOML"),
    ],
)
def test_a_senseless_file_is_refused_by_name(tmp_path, toml, complaint):
    with pytest.raises(CliError) as refused:
        settings(toml, folder=tmp_path)
    assert complaint in str(refused.value)


def test_an_unknown_variable_is_refused_but_those_of_other_commands_are_not():
    with pytest.raises(CliError, match=r"CLARION_DATADIR .*did you mean CLARION_DATA_DIR"):
        settings(environment={"CLARION_DATADIR": "x"})
    settings(environment={"CLARION_BOOTSTRAP": "127.0.0.1:1"})


def test_no_two_settings_share_a_variable_or_a_flag():
    assert len({each.env for each in SETTINGS}) == len(SETTINGS) == len(BY_NAME)
    flags = [each.flag for each in SETTINGS if each.flag]
    assert len({*flags}) == len(flags)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--lisen", "127.0.0.1:0"], "unrecognized argument: --lisen"),
        (["--liste=127.0.0.1:0"], "unrecognized argument"),  # no abbreviations: a later flag would change their meaning
        (["stray"], "unrecognized argument: stray"),
        (["--data-dir"], "--data-dir needs a value"),
        (["--data-dir", "--insecure"], "--data-dir needs a value"),
        (["--insecure=yes"], "--insecure takes no value"),
    ],
)
def test_words_that_are_no_flags_are_refused_by_name(words, reason):
    with pytest.raises(CliError, match=reason):
        parse_flags(words)


def test_a_flag_takes_its_value_as_the_next_word_or_behind_an_equals_sign():
    flags = parse_flags(["--data-dir", "a b", "--listen=[::1]:1", "--listen", "h:2", "--insecure", "--set=a=b"])
    given = {name: value for name, value in flags.items() if value}
    assert given == {"data_dir": "a b", "listen": ["[::1]:1", "h:2"], "insecure": True, "set": ["a=b"]}
