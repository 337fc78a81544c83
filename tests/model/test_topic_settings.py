"""Topic settings: honoured or refused."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clarion.model.broker_defaults import (
    BROKER_SYNONYMS,
    DEFAULT_BEHIND,
    in_topic_names,
    in_topic_unit,
    with_dynamic,
)
from clarion.model.errors import ErrorCode, KafkaError
from clarion.model.setting_changes import AlterOperation, Edit, SettingChange, change_overrides
from clarion.model.setting_kinds import Kind
from clarion.model.topic_settings import TOPIC_SETTINGS, TopicSettings, parse

DEFAULTS = TopicSettings()

# The names of Kafka 4.3's TopicConfig that its log accepts; our own start with "clarion.".
KAFKA_NAMES = """
    cleanup.policy compression.gzip.level compression.lz4.level compression.type compression.zstd.level
    delete.retention.ms file.delete.delay.ms flush.messages flush.ms follower.replication.throttled.replicas
    index.interval.bytes leader.replication.throttled.replicas local.retention.bytes local.retention.ms
    max.compaction.lag.ms max.message.bytes message.timestamp.after.max.ms message.timestamp.before.max.ms
    message.timestamp.type min.cleanable.dirty.ratio min.compaction.lag.ms min.insync.replicas preallocate
    remote.log.copy.disable remote.log.delete.on.disable remote.storage.enable retention.bytes retention.ms
    segment.bytes segment.index.bytes segment.jitter.ms segment.ms unclean.leader.election.enable
""".split()  # noqa: SIM905


def refusal(overrides, defaults=DEFAULTS):
    with pytest.raises(KafkaError) as caught:
        parse(overrides, defaults)
    assert caught.value.code is ErrorCode.INVALID_CONFIG
    return caught.value.message


def test_every_topic_setting_of_kafka_is_known():
    assert [name for name in TOPIC_SETTINGS if not name.startswith("clarion.")] == KAFKA_NAMES


def test_kafkas_defaults_are_ours():
    assert DEFAULTS.retention_ms == 604_800_000
    assert DEFAULTS.max_message_bytes == 1_048_588
    assert DEFAULTS.message_timestamp_after_max_ms == 3_600_000
    assert DEFAULTS.segment_bytes == 2**30
    assert DEFAULTS.delete_retention_ms == 86_400_000
    assert DEFAULTS.text("flush.ms") == "9223372036854775807"
    assert DEFAULTS.text("cleanup.policy") == "delete"
    assert DEFAULTS.text("preallocate") == "false"
    assert DEFAULTS.text("min.cleanable.dirty.ratio") == "0.5"


def test_every_setting_says_what_it_does_and_its_default_reads_back_as_itself():
    for name, declared in TOPIC_SETTINGS.items():
        assert len(declared.doc) > 20, name
        assert declared.read(DEFAULTS.text(name)) == declared.default == DEFAULTS.value(name)


def test_overrides_are_typed_and_the_rest_is_inherited():
    inherited = parse({"retention.ms": "-1"}, DEFAULTS)
    settings = parse(
        {"cleanup.policy": "compact, delete", "segment.ms": " 60000 ", "unclean.leader.election.enable": "TRUE"},
        inherited,
    )
    assert settings.cleanup_policy == ("compact", "delete")
    assert settings.is_compacted
    assert settings.is_deleted
    assert settings.segment_ms == 60_000
    assert settings.unclean_leader_election_enable is True
    assert settings.retention_ms == -1


def test_an_unknown_setting_is_refused_with_the_nearest_name():
    assert "did you mean 'retention.ms'" in refusal({"retention.mss": "1"})
    assert refusal({"x": "1"}) == "Unknown topic config name: x"


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("retention.ms", "soon", "Not a number of type LONG"),
        ("retention.ms", "1.5", "Not a number of type LONG"),
        ("retention.ms", "²", "Not a number of type LONG"),
        ("retention.ms", "9223372036854775808", "Not a number of type LONG"),
        ("retention.ms", "9" * 5000, "Not a number of type LONG"),
        ("retention.ms", "-2", "at least -1"),
        ("retention.ms", None, "Null value not supported"),
        ("segment.bytes", "2147483648", "Not a number of type INT"),
        ("segment.bytes", "14", "at least 1024"),
        ("cleanup.policy", "compact,shred", "String must be one of: compact, delete"),
        ("min.cleanable.dirty.ratio", "1.01", "Value must be no more than 1"),
        ("min.cleanable.dirty.ratio", "nan", "Not a number of type DOUBLE"),
        ("min.cleanable.dirty.ratio", "half", "Not a number of type DOUBLE"),
        ("min.insync.replicas", "0", "at least 1"),
        ("message.timestamp.type", "createtime", "String must be one of: "),
        ("unclean.leader.election.enable", "yes", "Expected value to be either true or false"),
        ("clarion.durability", "hope", "String must be one of: "),
        ("compression.type", "x" * 40_000, "at most"),
        ("compression.type", "brotli", "must be one of"),
        ("compression.gzip.level", "0", "between 1 and 9"),
        ("compression.gzip.level", "10", "between 1 and 9"),
        ("compression.lz4.level", "18", "no more than 17"),
        ("compression.zstd.level", "23", "no more than 22"),
        ("leader.replication.throttled.replicas", "0", "must be * or a list"),
        ("follower.replication.throttled.replicas", "0:1,*", "must be * or a list"),
    ],
)
def test_a_senseless_value_is_refused_with_the_reason(name, text, reason):
    """In Kafka's words, which clients look for."""
    message = refusal({name: text})
    assert name in message
    assert reason in message


def test_a_refusal_is_worded_as_kafka_words_it():
    assert refusal({"retention.ms": "soon"}) == (
        "Invalid value soon for configuration retention.ms: Not a number of type LONG"
    )


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("remote.storage.enable", "true"),
        ("local.retention.ms", "1000"),
    ],
)
def test_what_cannot_be_honoured_is_refused_and_its_off_value_is_accepted(name, text):
    assert "only" in refusal({name: text})
    assert parse({name: DEFAULTS.text(name)}, DEFAULTS) == DEFAULTS


@pytest.mark.parametrize("asked", [{"flush.messages": "1"}, {"flush.messages": "1000"}, {"flush.ms": "1000"}])
def test_who_asks_for_flushes_gets_them_whatever_the_durability(asked):
    page_cache = parse({"clarion.durability": "page-cache"}, DEFAULTS)
    assert not page_cache.is_durable
    assert parse(asked, page_cache).is_durable
    assert parse(asked, DEFAULTS).is_durable


def test_preallocation_is_accepted():
    assert parse({"preallocate": "true"}, DEFAULTS).text("preallocate") == "true"


def test_the_least_compaction_lag_cannot_exceed_the_greatest():
    assert "min.compaction.lag.ms (6) > max.compaction.lag.ms (5)" in refusal(
        {"min.compaction.lag.ms": "6", "max.compaction.lag.ms": "5"}
    )


def test_a_compacted_topic_is_always_validated_deeply():
    assert not DEFAULTS.is_validated_deeply
    assert parse({"clarion.validation": "deep"}, DEFAULTS).is_validated_deeply
    assert parse({"cleanup.policy": "compact"}, DEFAULTS).is_validated_deeply


def test_without_a_cleanup_policy_everything_stays():
    settings = parse({"cleanup.policy": ""}, DEFAULTS)
    assert (settings.is_compacted, settings.is_deleted, settings.text("cleanup.policy")) == (False, False, "")


def test_hold_groups_are_a_list():
    settings = parse({"clarion.retention.hold.groups": "bank, audit,bank,"}, DEFAULTS)
    assert settings.retention_hold_groups == ("bank", "audit")


@given(st.sampled_from(sorted(TOPIC_SETTINGS)), st.text(max_size=30))
def test_any_text_is_a_value_or_a_refusal(name, text):
    try:
        settings = parse({name: text}, DEFAULTS)
    except KafkaError:
        refusal({name: text})
        return
    assert parse({name: settings.text(name)}, DEFAULTS) == settings


# ------------------------------------------------------------------------------------------------ broker defaults


def inherited(configured):
    return parse(in_topic_names(configured), DEFAULTS)


def test_the_broker_is_configured_by_kafkas_names():
    defaults = inherited(
        {"log.retention.hours": "2", "log.segment.bytes": "4096", "message.max.bytes": "100", "log.roll.hours": "1"}
    )
    assert (defaults.retention_ms, defaults.segment_bytes) == (7_200_000, 4096)
    assert (defaults.max_message_bytes, defaults.segment_ms) == (100, 3_600_000)
    assert inherited({"retention.ms": "5", "log.retention.ms": "7"}).retention_ms == 5


def test_the_finer_unit_wins_and_minus_one_stays_for_ever():
    assert inherited({"log.retention.hours": "2", "log.retention.minutes": "3"}).retention_ms == 180_000
    assert inherited({"log.retention.minutes": "3", "log.retention.ms": "7"}).retention_ms == 7
    assert inherited({"log.retention.hours": "-1"}).retention_ms == -1


@pytest.mark.parametrize(
    ("name", "text"), [("log.retention.hour", "1"), ("log.retention.hours", "x"), ("no.such.setting", "1")]
)
def test_a_senseless_broker_default_is_refused(name, text):
    with pytest.raises(KafkaError, match=re.escape(name)):
        in_topic_names({name: text})


def test_the_strongest_layer_of_what_changed_at_run_time_wins():
    static = inherited({"log.retention.ms": "1", "log.segment.bytes": "5000"})
    one, all_brokers = {"log.retention.ms": "3", "not.ours": "x"}, {"log.retention.ms": "2", "log.roll.ms": "9"}
    now = with_dynamic(static, one, all_brokers)
    assert (now.retention_ms, now.segment_ms, now.segment_bytes) == (3, 9, 5000)
    assert with_dynamic(static) == static
    with pytest.raises(KafkaError, match=r"configuration log\.segment\.bytes"):
        with_dynamic(static, {"log.segment.bytes": "x"})


def test_synonyms_belong_to_one_setting_each():
    assert len(BROKER_SYNONYMS) == sum(len(declared.synonyms) for declared in TOPIC_SETTINGS.values())


def test_a_name_without_a_default_has_a_weaker_one_with_the_same_default():
    for first, (weaker, text) in DEFAULT_BEHIND.items():
        declared = BROKER_SYNONYMS[first]
        assert declared.read(in_topic_unit(weaker, text)) == declared.default, first


# ------------------------------------------------------------------------------------------------ changes


def changed(overrides, *changes):
    return change_overrides(overrides, Edit([SettingChange(*change) for change in changes], False), DEFAULTS)


def test_set_and_delete_change_the_overrides():
    assert changed(
        {"retention.ms": "1"}, ("segment.ms", AlterOperation.SET, "5"), ("retention.ms", AlterOperation.DELETE, None)
    ) == {"segment.ms": "5"}
    assert changed({}, ("retention.ms", AlterOperation.DELETE, None)) == {}
    assert changed({}, ("nothing", AlterOperation.DELETE, None)) == {}


def test_a_replacement_lets_go_of_what_it_does_not_name():
    edit = Edit([SettingChange("segment.ms", AlterOperation.SET, "5")], replaces_all=True)
    assert change_overrides({"retention.ms": "1"}, edit, DEFAULTS) == {"segment.ms": "5"}


def test_append_and_subtract_edit_the_list_that_is_in_force():
    assert changed({}, ("cleanup.policy", AlterOperation.APPEND, "compact")) == {"cleanup.policy": "delete,compact"}
    assert changed({"cleanup.policy": "delete,compact"}, ("cleanup.policy", AlterOperation.SUBTRACT, "delete")) == {
        "cleanup.policy": "compact"
    }
    assert changed({}, ("cleanup.policy", AlterOperation.SUBTRACT, "delete")) == {"cleanup.policy": ""}
    assert changed({"clarion.retention.hold.groups": "a"}, ("clarion.retention.hold.groups", 2, "b,a")) == {
        "clarion.retention.hold.groups": "a,b"
    }


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ([("retention.ms", AlterOperation.APPEND, "1")], ErrorCode.INVALID_CONFIG),
        ([("retention.ms", AlterOperation.SET, None)], ErrorCode.INVALID_REQUEST),
        ([("retention.ms", AlterOperation.SET, "x")], ErrorCode.INVALID_CONFIG),
        ([("nothing", AlterOperation.SET, "1")], ErrorCode.INVALID_CONFIG),
        ([("retention.ms", 9, "1")], ErrorCode.INVALID_REQUEST),
    ],
)
def test_an_impossible_change_is_refused_and_changes_nothing(changes, code):
    overrides = {"segment.ms": "7"}
    with pytest.raises(KafkaError) as caught:
        changed(overrides, *changes)
    assert caught.value.code is code
    assert overrides == {"segment.ms": "7"}


def test_kinds_have_kafkas_codes():
    assert {kind.name: kind.value for kind in Kind} == {
        "BOOLEAN": 1, "STRING": 2, "INT": 3, "LONG": 5, "DOUBLE": 6, "LIST": 7,
    }  # fmt: skip


OLD_MAXIMUM, MAXIMUM = "clarion.retention.hold.max.ms", "clarion.retention.max.ms"


def test_a_setting_that_was_renamed_is_read_by_its_old_name_and_the_present_one_is_stronger():
    assert parse({OLD_MAXIMUM: "5"}, DEFAULTS).retention_max_ms == 5
    assert parse({MAXIMUM: "6", OLD_MAXIMUM: "5"}, DEFAULTS).retention_max_ms == 6
    assert parse({OLD_MAXIMUM: "5", MAXIMUM: "6"}, DEFAULTS).retention_max_ms == 6
    with pytest.raises(KafkaError, match=MAXIMUM):
        parse({OLD_MAXIMUM: "-2"}, DEFAULTS)


def test_a_change_of_a_renamed_setting_leaves_no_second_name_behind():
    assert changed({OLD_MAXIMUM: "5"}, (OLD_MAXIMUM, 0, "7")) == {MAXIMUM: "7"}
    assert changed({OLD_MAXIMUM: "5"}, (MAXIMUM, 0, "7")) == {MAXIMUM: "7"}
    assert changed({OLD_MAXIMUM: "5"}, (MAXIMUM, 1, None)) == {}
    assert changed({OLD_MAXIMUM: "5"}, (OLD_MAXIMUM, 1, None)) == {}
    assert changed({OLD_MAXIMUM: "5"}, ("retention.ms", 0, "7")) == {OLD_MAXIMUM: "5", "retention.ms": "7"}


def test_what_topics_inherit_is_read_by_an_old_name_too():
    assert with_dynamic(DEFAULTS, {OLD_MAXIMUM: "5"}).retention_max_ms == 5
    assert with_dynamic(DEFAULTS, {OLD_MAXIMUM: "5", MAXIMUM: "6"}).retention_max_ms == 6
    assert in_topic_names({OLD_MAXIMUM: "5"}) == {MAXIMUM: "5"}
