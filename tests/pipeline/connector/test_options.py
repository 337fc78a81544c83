"""Options by name: what is read, what is refused, and in which words."""

import pytest

from clarion.model.ids import TopicPartition
from clarion.pipeline.connector_options import OptionError
from clarion.pipeline.kafka.offsets import READ_COMMITTED, READ_UNCOMMITTED
from clarion.pipeline.kafka.settings import TlsSettings, address
from clarion.pipeline.sink.options import sink_settings
from clarion.pipeline.source.bounds import AtOffsets, AtTimes, Earliest, Latest, check_batch, moves
from clarion.pipeline.source.options import source_settings


def source(**more: str):
    return source_settings({"bootstrap.servers": "b:9092", "subscribe": "t", **_named(more)})


def sink(**more: str):
    return sink_settings({"bootstrap.servers": "b:9092", "topic": "t", **_named(more)})


def _named(options: dict[str, str]) -> dict[str, str]:
    """As Spark hands them over: in lower case; underscores stand for dots."""
    return {name.lower().replace("_", "."): value for name, value in options.items()}


def test_defaults_are_those_of_sparks_kafka_connector():
    settings = source()
    assert settings.subscription.topics == ("t",)
    assert settings.starting is None
    assert settings.ending is None
    assert settings.fail_on_data_loss
    assert not settings.include_headers
    assert settings.group_id is None
    assert settings.limits.rows_max is None
    assert settings.fetch.isolation == READ_COMMITTED


def test_bootstrap_servers_may_have_kafka_in_front():
    with_prefix = source_settings({"kafka.bootstrap.servers": "a:1, b:2", "subscribe": "t"})
    assert with_prefix.client.bootstrap_servers == ("a:1", "b:2")


def test_the_same_option_twice_is_refused_if_it_differs():
    with pytest.raises(OptionError, match="is given twice"):
        source(kafka_bootstrap_servers="other:9092")


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("startingOffset", "startingOffsets"),
        ("maxOffsetPerTrigger", "maxOffsetsPerTrigger"),
        ("kafka.ssl.ca.locaton", "ssl.ca.location"),
        ("subscribePatern", "subscribePattern"),
    ],
)
def test_an_unknown_option_is_refused_with_the_nearest_name(name, nearest):
    with pytest.raises(OptionError, match=f"unknown option {name.lower()}; did you mean {nearest}\\?"):
        source_settings({"bootstrap.servers": "b", "subscribe": "t", name.lower(): "x"})


def test_an_option_like_no_other_is_refused_without_a_guess():
    with pytest.raises(OptionError, match=r"^unknown option zzzz$"):
        source(zzzz="1")


def test_what_spark_adds_itself_is_let_through():
    assert source(checkpointLocation="/somewhere")
    assert sink(checkpointLocation="/somewhere", queryName="q")


def test_there_is_exactly_one_way_to_subscribe():
    with pytest.raises(OptionError, match=r"subscribe, subscribePattern and assign$"):
        source_settings({"bootstrap.servers": "b"})
    with pytest.raises(OptionError, match="not subscribe and assign"):
        source(assign='{"t": [0]}')
    assert source_settings({"bootstrap.servers": "b", "subscribe": "b, a,b"}).subscription.topics == ("a", "b")
    assert source_settings({"bootstrap.servers": "b", "subscribepattern": "log.*"}).subscription.pattern == "log.*"
    assigned = source_settings({"bootstrap.servers": "b", "assign": '{"t": [1, 0], "s": [2]}'}).subscription
    assert assigned.assigned == (TopicPartition("s", 2), TopicPartition("t", 0), TopicPartition("t", 1))
    assert assigned.names == ("s", "t")


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("subscribe", " , ", "names no topic"),
        ("subscribe", "a/b", "only letters, digits"),
        ("subscribepattern", "(", "not a regular expression"),
        ("assign", '{"t": 0}', "is not JSON like"),
        ("assign", "{}", "names no partition"),
    ],
)
def test_a_subscription_that_makes_no_sense_is_refused(option, value, words):
    with pytest.raises(OptionError, match=f"option .*{words}"):
        source_settings({"bootstrap.servers": "b", option: value})


def test_where_to_begin_is_said_by_name_by_offset_or_by_time():
    tp = TopicPartition("t", 0)
    assert source(startingOffsets="EARLIEST").starting == Earliest()
    assert source(startingOffsets="latest").starting == Latest()
    assert source(startingOffsets='{"t": {"0": 23}}').starting == AtOffsets(((tp, 23),))
    assert source(startingOffsets='{"t": {"id": "…", "0": -2}}').starting == AtOffsets(((tp, -2),))
    assert source(startingOffsetsByTimestamp='{"t": {"0": 1000}}').starting == AtTimes(((tp, 1000),))
    everything = source(startingTimestamp="1700000000000", startingOffsets="earliest", endingTimestamp="1800000000000")
    assert everything.starting == AtTimes((), 1700000000000)
    assert everything.ending == AtTimes((), 1800000000000)


@pytest.mark.parametrize(
    "text", ["soon", "[]", '{"t": 5}', '{"t": {"zero": 5}}', '{"t": {"0": "5"}}', '{"t": {"0": -3}}']
)
def test_offsets_that_make_no_sense_are_refused(text):
    with pytest.raises(OptionError, match="option startingOffsets: "):
        source(startingOffsets=text)


def test_a_batch_neither_begins_at_the_latest_nor_ends_at_the_earliest():
    tp = TopicPartition("t", 0)
    for start, end in ((Latest(), Latest()), (AtOffsets(((tp, -1),)), Latest())):
        with pytest.raises(OptionError, match="cannot begin at the latest"):
            check_batch(start, end)
    for start, end in ((Earliest(), Earliest()), (Earliest(), AtOffsets(((tp, -2),)))):
        with pytest.raises(OptionError, match="cannot end at the earliest"):
            check_batch(start, end)
    check_batch(Earliest(), Latest())


def test_a_start_that_moves_with_time_is_known():
    tp = TopicPartition("t", 0)
    assert moves(Latest())
    assert moves(AtTimes((), 5))
    assert moves(AtOffsets(((tp, -1),)))
    assert not moves(Earliest())
    assert not moves(AtOffsets(((tp, 5),)))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"maxoffsetspertrigger": "many"}, "'many' is not a whole number"),
        ({"maxoffsetspertrigger": "0"}, "0 is less than 1"),
        ({"minoffsetspertrigger": "10", "maxoffsetspertrigger": "5"}, "greater than maxOffsetsPerTrigger"),
        ({"failondataloss": "maybe"}, "'maybe' is none of true, false"),
        ({"maxtriggerdelay": "soon"}, "'soon' is not a time like 30s"),
        ({"isolation.level": "none"}, "is none of read_committed"),
        ({"groupid": "a", "kafka.group.id": "b"}, "mean the same"),
    ],
)
def test_values_that_make_no_sense_are_refused(options, words):
    with pytest.raises(OptionError, match=words):
        source(**options)


@pytest.mark.parametrize(("text", "ms"), [("30s", 30_000), ("15m", 900_000), ("2 h", 7_200_000), ("500", 500)])
def test_durations_have_units(text, ms):
    assert source(maxTriggerDelay=text).limits.delay_max_ms == ms


def test_options_reach_their_place():
    settings = source(
        includeHeaders="true",
        failOnDataLoss="false",
        groupId="g",
        minPartitions="9",
        maxBytesPerTrigger="1000",
        kafka_isolation_level="read_uncommitted",
        kafka_fetch_max_bytes="1048576",
        kafka_check_crcs="false",
    )
    assert settings.include_headers
    assert settings.fetch.with_headers
    assert not settings.fail_on_data_loss
    assert settings.group_id == "g"
    assert settings.tasks.least == 9
    assert settings.limits.bytes_max == 1000
    assert settings.fetch.isolation == READ_UNCOMMITTED
    assert settings.fetch.fetch_bytes == 1048576
    assert settings.fetch.checks_crcs is False


def test_tls_takes_librdkafkas_and_javas_names():
    ours = source(
        kafka_security_protocol="SSL", kafka_ssl_ca_location="/ca", ssl_key_location="/k", ssl_key_password="p"
    )
    assert ours.client.tls == TlsSettings("/ca", None, "/k", "p")
    assert "'p'" not in repr(ours)
    javas = {"security.protocol": "ssl", "kafka.ssl.truststore.location": "/t"}
    with pytest.raises(OptionError, match="only PEM"):
        source(**javas)
    pem = source(**javas, **{"kafka.ssl.truststore.type": "PEM", "ssl.endpoint.identification.algorithm": ""})
    assert pem.client.tls == TlsSettings("/t", checks_host_name=False)
    with pytest.raises(OptionError, match="SASL_SSL is not supported"):
        source(security_protocol="SASL_SSL")


@pytest.mark.parametrize(
    ("text", "where"), [("h:1", ("h", 1)), ("h", ("h", 9092)), ("[::1]:5", ("::1", 5)), ("[::1]", ("::1", 9092))]
)
def test_addresses_have_a_host_and_perhaps_a_port(text, where):
    assert address(text) == where


@pytest.mark.parametrize("text", ["h:port", ":1", "h:0", "h:99999"])
def test_wrong_addresses_are_refused(text):
    with pytest.raises(OptionError, match=r"bootstrap.servers: .* is not host:port"):
        source_settings({"bootstrap.servers": text, "subscribe": "t"})


def test_the_sink_has_its_own_options():
    settings = sink(kafka_compression_type="zstd", kafka_max_request_size="5000", acks="all")
    assert settings.topic == "t"
    assert settings.producer.compression == 4
    assert settings.producer.batch_bytes_max == 5000
    with pytest.raises(OptionError, match="unknown option subscribe"):
        sink(subscribe="t")
    with pytest.raises(OptionError, match="option acks: '1' is none of all, -1"):
        sink(kafka_acks="1")
    with pytest.raises(OptionError, match="option topic: "):
        sink(topic="a b")
