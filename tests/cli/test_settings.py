"""Settings from file, environment and flags; whatever makes no sense is refused by name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from clarion.broker.config import BrokerConfig, Durability, ListenerConfig, TlsConfig
from clarion.broker.settings import BROKER_SETTINGS, OLD_NAMES
from clarion.cli.errors import CliError, UsageError
from clarion.cli.flags import FLAGS, parse_flags
from clarion.cli.settings import env_name, load


def settings(toml: str = "", environment: dict[str, str] | None = None, flags: list[str] | None = None, *, folder=None):
    file = None
    if toml:
        file = str(folder / "clarion.toml")
        Path(file).write_text(toml)
    given = parse_flags(flags or [])
    return load(file or given["config"], environment or {}, given)


def test_with_nothing_said_a_broker_has_its_defaults():
    loaded = settings()
    expected = BrokerConfig(data_dir=str(Path("clarion-data").absolute()), metrics_port=9644, http_is_auto=True)
    assert loaded.config == expected
    assert not loaded.renamed


def test_flags_win_over_the_environment_and_that_over_the_file(tmp_path):
    toml = '"node.id" = 1\nnum.partitions = 1\nclarion.durability = "page-cache"'
    loaded = settings(
        toml,
        {"CLARION_NODE_ID": "2", "CLARION_NUM_PARTITIONS": "2", "HOME": "/root"},
        ["--node-id", "3"],
        folder=tmp_path,
    )
    assert (loaded.config.node_id, loaded.config.default_partitions) == (3, 2)
    assert loaded.config.durability is Durability.PAGE_CACHE


def test_old_names_keep_working_and_say_what_they_are_called_now(tmp_path):
    toml = "default_partitions = 3\nretention_check_seconds = 0.5\n[limits]\nconnections_max = 7\nidle_seconds_max = 2"
    flags = ["--set", "group_initial_rebalance_delay_ms=0", "--set", "durability=page-cache"]
    loaded = settings(toml, {"CLARION_OFFSETS_PARTITIONS": "4"}, flags, folder=tmp_path)
    config = loaded.config
    assert (config.default_partitions, config.offsets_partitions, config.groups.initial_rebalance_delay_ms) == (3, 4, 0)
    assert (config.retention_check_seconds, config.limits.connections_max, config.limits.idle_seconds_max) == (
        0.5,
        7,
        2,
    )
    assert config.durability is Durability.PAGE_CACHE
    assert loaded.renamed == {
        "default_partitions": "num.partitions",
        "retention_check_seconds": "log.retention.check.interval.ms",
        "limits.connections_max": "max.connections",
        "limits.idle_seconds_max": "connections.max.idle.ms",
        "CLARION_OFFSETS_PARTITIONS": "CLARION_OFFSETS_TOPIC_NUM_PARTITIONS",
        "group_initial_rebalance_delay_ms": "group.initial.rebalance.delay.ms",
        "durability": "clarion.durability",
    }


def test_a_variable_that_is_called_as_before_is_not_complained_about():
    environment = {"CLARION_DURABILITY": "page-cache", "CLARION_LOG_LEVEL": "error", "CLARION_NODE_ID": "5"}
    loaded = settings(environment=environment)
    assert (loaded.config.durability, loaded.config.log_level, loaded.config.node_id) == ("page-cache", "error", 5)
    assert not loaded.renamed


def test_durations_and_sizes_are_taken_as_people_write_them(tmp_path):
    toml = '"log.retention.ms" = "1d"\n"clarion.disk.reserve.bytes" = "10GB"\n"offsets.retention.minutes" = "2h"'
    environment = {"CLARION_CONNECTIONS_MAX_IDLE_MS": "1h30m", "CLARION_LOG_SEGMENT_BYTES": "64MiB"}
    config = settings(toml, environment, ["--set", "log.roll.hours=2d"], folder=tmp_path).config
    assert config.topic_defaults == {"retention.ms": "86400000", "segment.bytes": "67108864", "segment.ms": "172800000"}
    assert (config.reserve_bytes, config.groups.offsets_retention_minutes) == (10_000_000_000, 120)
    assert config.limits.idle_seconds_max == 5_400


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
    with pytest.raises(CliError, match=r"topic_defaults\.log\.retention\.hour \(did you mean log\.retention\.hours"):
        settings('[topic_defaults]\n"log.retention.hour" = 2', {}, [], folder=tmp_path)


def test_topic_defaults_by_the_topics_names_say_what_the_broker_calls_them(tmp_path):
    environment = {"CLARION_TOPIC_DEFAULT_MAX_MESSAGE_BYTES": "5"}
    loaded = settings('[topic_defaults]\n"retention.ms" = 1', environment, folder=tmp_path)
    assert loaded.config.topic_defaults == {"retention.ms": "1", "max.message.bytes": "5"}
    assert loaded.renamed["topic_defaults.retention.ms"] == "log.retention.ms"
    assert loaded.renamed["CLARION_TOPIC_DEFAULT_MAX_MESSAGE_BYTES"] == "CLARION_MESSAGE_MAX_BYTES"


def test_listeners_are_taken_as_kafka_writes_them(tmp_path):
    for name in ("cert", "key"):
        (tmp_path / name).write_text("")
    tls = TlsConfig(f"{tmp_path}/cert", f"{tmp_path}/key")
    toml = f'''
listeners = ["PLAINTEXT://127.0.0.1:1", "SSL://127.0.0.1:2", "127.0.0.1:3"]
clarion.tls.certificate = "{tmp_path}/cert"
clarion.tls.key = "{tmp_path}/key"
'''
    expected = (ListenerConfig("127.0.0.1", 1), ListenerConfig("127.0.0.1", 2, tls=tls))
    assert settings(toml, folder=tmp_path).config.listeners == (*expected, replace(expected[1], port=3))
    with pytest.raises(CliError, match=r"SSL:// needs clarion\.tls\.certificate"):
        settings(flags=["--listen", "SSL://127.0.0.1:2"])


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
        (["--listen", "127.0.0.1:99999"], "HOST:PORT, e.g. 127.0.0.1:9092, with a port up to 65535"),
        (["--listen", "no-such-host.invalid:1"], "no host called"),
        (["--advertise", "a:1", "--advertise", "b:1"], "one for each"),
        (["--durability", "maybe"], "must be one of: fsync, page-cache"),
        (["--node-id", "-1"], "--node-id: Invalid value -1 for configuration node.id: Value must be at least 0"),
        (["--log-level", "chatty"], "must be one of: debug, info"),
        (["--data-dir", ""], "--data-dir"),
        (["--tls-key", "/dev/null"], "also needs --tls-"),
        (["--tls-key", "/dev/null", "--tls-certificate", "/no/such"], "cannot read /no/such"),
        (["--set", "nonsense"], "NAME=VALUE"),
        (["--set", "max.conections=5"], "did you mean max.connections?"),
        (["--set", "limits.conections_max=5"], "did you mean max.connections?"),
        (["--set", "max.connections=0"], "at least 1"),
        (["--set", "limits.idle_seconds_max=nan"], "Not a number"),
        (["--set", "connections.max.idle.ms=1fortnight"], "write milliseconds, or for example 90s"),
        (["--set", "offsets.retention.minutes=90s"], "write minutes, or for example 90m"),
        (["--set", "message.max.bytes=2QB"], "write bytes, or for example 64MiB"),
        (["--set", "auto.create.topics.enable=perhaps"], "true or false"),
        (["--set", "group.min.session.timeout.ms=99999999"], "group.max.session.timeout.ms"),
        (["--set", "default.replication.factor=0"], "at least 1"),
        (["--set", "topic_defaults.retention.m=5"], "did you mean log.retention.ms?"),
        (["--set", "retention.ms=5"], "did you mean log.retention.ms?"),
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
        ("nod.id = 1", "did you mean node.id?"),
        ("nod_id = 1", "did you mean node.id?"),
        ("node.id = true", "node.id: Invalid value true"),
        ("node.id = 1.5", "Not a number"),
        ("[limit]\nconnections_max = 1", "did you mean max.connections?"),
        ("topic_defaults = 3", "unknown setting"),
        ("[topic_defaults]\nretention.mss = 3", "retention.ms"),
        ('listeners = "x"', "HOST:PORT"),
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


@pytest.mark.parametrize(
    "flags", [["--set", "nonsense"], ["--set", "max.conections=5"], ["--durability", "maybe"], ["--node-id", "x"]]
)
def test_wrong_words_on_the_command_line_are_a_usage_error_and_a_wrong_file_is_not(tmp_path, flags):
    with pytest.raises(UsageError):
        settings(flags=flags)
    with pytest.raises(CliError) as refused:
        settings("max.conections = 5", folder=tmp_path)
    assert not isinstance(refused.value, UsageError)


def test_an_unknown_variable_is_refused_but_those_of_other_commands_are_not():
    with pytest.raises(CliError, match=r"CLARION_DATADIR .*did you mean CLARION_LOG_DIRS"):
        settings(environment={"CLARION_DATADIR": "x"})
    with pytest.raises(CliError, match=r"unknown setting CLARION_FOO$"):  # all are alike in how they begin
        settings(environment={"CLARION_FOO": "x"})
    settings(environment={"CLARION_BOOTSTRAP": "127.0.0.1:1"})


def test_no_two_settings_share_a_variable_and_none_is_a_table_of_another():
    variables = [env_name(name) for name in BROKER_SETTINGS]
    assert len({*variables}) == len(variables)
    assert not [(one, other) for one in BROKER_SETTINGS for other in BROKER_SETTINGS if other.startswith(f"{one}.")]
    assert not OLD_NAMES.keys() & BROKER_SETTINGS.keys()
    assert {*FLAGS.values()} <= BROKER_SETTINGS.keys()


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--lisen", "127.0.0.1:0"], "there is no option --lisen "),
        (["--liste=127.0.0.1:0"], "there is no option --liste"),  # a later flag would change what it means
        (["stray"], "there is no option stray"),
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


def test_http_is_on_a_port_of_its_own_for_each_broker_unless_said_otherwise():
    def told(*words: str) -> tuple[str, int | None, bool]:
        config = load(None, {}, parse_flags([*words])).config
        return config.metrics_host, config.metrics_port, config.http_is_auto

    assert told() == ("127.0.0.1", 9644, True)
    assert told("--node-id", "3") == ("127.0.0.1", 9646, True)
    assert told("--node-id", "60000") == ("127.0.0.1", 0, True)
    assert told("--listen", "127.0.0.1:0") == ("127.0.0.1", 0, True)
    assert told("--http", "off") == ("127.0.0.1", None, False)
    assert told("--http", "127.0.0.1:80") == told("--metrics", "127.0.0.1:80") == ("127.0.0.1", 80, False)
    assert told("--insecure", "--listen", "0.0.0.0:9092", "--advertise", "here:9092") == ("127.0.0.1", 9644, True)
