"""Messages written and read over HTTP, in every form, beside Kafka's own clients on the same topics."""

import base64
import json
import threading

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from clarion.gateway import bodies, message_service
from clarion.model.key_hash import partition_of_key
from tests.gateway.asking import Asker, check_problem

NDJSON = "application/x-ndjson"
RAW = "application/octet-stream"


def read(api, topic, query=""):
    answer = api.get(f"/v1/topics/{topic}/messages{query}")
    assert answer.status == 200, answer
    return answer.json["messages"]


def test_a_message_goes_where_its_key_says_and_comes_back_as_it_was(api, http_broker, topic):
    said = {"key": "42", "value": {"total": 12.5}, "headers": {"trace": "a1"}, "timestamp": 1_700_000_000_000}
    written = api.post(f"/v1/topics/{topic}/messages", said).json
    assert (written["topic"], written["partition"]) == (topic, partition_of_key(b"42", 3))
    (found,) = http_broker.messages(topic)
    assert (found.key, json.loads(found.value), found.headers) == (b"42", {"total": 12.5}, (("trace", b"a1"),))
    (told,) = read(api, topic)
    assert told == {
        "topic": topic,
        "partition": written["partition"],
        "offset": 0,
        "timestamp": 1_700_000_000_000,
        "key": "42",
        "value": '{"total":12.5}',
        "headers": [{"name": "trace", "value": "a1"}],
    }
    assert read(api, topic, "?encoding=json")[0]["value"] == {"total": 12.5}
    assert base64.b64decode(read(api, topic, "?encoding=base64")[0]["key_base64"]) == b"42"


def test_a_topic_is_written_and_read_by_its_id(api, topic):
    topic_id = api.get(f"/v1/topics/{topic}").json["id"]
    assert api.post(f"/v1/topics/{topic_id}/messages", {"value": "x"}).json["topic_id"] == topic_id
    assert [one["value"] for one in read(api, topic_id)] == ["x"]


def test_kafkas_clients_read_what_http_wrote_and_the_other_way_round(api, http_broker, topic):
    api.post(f"/v1/topics/{topic}/partitions/0/messages", {"key": "k", "value": "from http"})
    producer = Producer({"bootstrap.servers": http_broker.bootstrap})
    producer.produce(topic, b"from kafka", b"k", 1)
    assert producer.flush(60) == 0
    assert sorted(one["value"] for one in read(api, topic)) == ["from http", "from kafka"]
    consumer = Consumer(
        {"bootstrap.servers": http_broker.bootstrap, "group.id": topic, "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    values = set()
    while len(values) < 2:
        values |= {one.value() for one in consumer.consume(2, 60)}
    consumer.close()
    assert values == {b"from http", b"from kafka"}


@pytest.mark.parametrize(
    ("said", "value"),
    [
        ({"value": "text"}, b"text"),
        ({"value": ""}, b""),
        ({"value": None}, None),
        ({}, None),
        ({"value": 7}, b"7"),
        ({"value": False}, b"false"),
        ({"value": ["ä"]}, '["ä"]'.encode()),
        ({"value_base64": "/wA="}, b"\xff\0"),
        ({"value": None, "value_base64": "/wA="}, b"\xff\0"),
    ],
)
def test_a_value_is_text_or_json_or_base64_or_nothing(api, http_broker, topic, said, value):
    assert api.post(f"/v1/topics/{topic}/messages", said).status == 200
    assert http_broker.messages(topic)[0].value == value


def test_what_is_no_text_is_told_in_base64(api, http_broker, topic):
    http_broker.produce(topic, b"\xff", key=b"\xfe", headers=(("h", b"\xfd"), ("n", None)), partition=0)
    (told,) = read(api, topic)
    assert (told["key_base64"], told["value_base64"]) == ("/g==", "/w==")
    assert told["headers"] == [{"name": "h", "value_base64": "/Q=="}, {"name": "n", "value": None}]


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ([1], "JSON object"),
        ({"valeu": 1}, "no field 'valeu'"),
        ({"value": 1, "value_base64": "AA=="}, "not both"),
        ({"value_base64": "?"}, "no base64"),
        ({"partition": -1}, "partition"),
        ({"partition": True}, "partition"),
        ({"timestamp": 2**63}, "timestamp"),
        ({"headers": 5}, "headers are"),
        ({"headers": [{"value": "x"}]}, "a header is"),
        ({"headers": [{"name": "x", "vlaue": "x"}]}, "no field 'vlaue'"),
        ({"value": "\ud800"}, "Unicode"),
        ({"idempotency_key": ""}, "idempotency key"),
        ({"partition": 3}, "from 0 on"),
    ],
)
def test_a_message_that_cannot_be_is_refused_with_what_is_wrong(api, topic, said, words):
    if isinstance(said, list):
        (result,) = api.post(f"/v1/topics/{topic}/messages", said).json["results"]
        assert words in result["detail"]
        return
    answer = api.post(f"/v1/topics/{topic}/messages", said)
    check_problem(answer, 404 if said == {"partition": 3} else 422, words)
    assert read(api, topic) == []


def test_of_several_messages_each_has_its_own_result(api, topic):
    answer = api.post(
        f"/v1/topics/{topic}/messages",
        [{"value": "1", "partition": 0}, {"nonsense": 1}, {"value": "2", "partition": 0}],
    )
    assert answer.status == 207
    first, second, third = answer.json["results"]
    assert (first["offset"], third["offset"]) == (0, 1)
    assert second["status"] == 422
    assert [one["value"] for one in read(api, topic)] == ["1", "2"]


def test_a_compacted_topic_refuses_only_those_without_a_key(api, http_broker):
    http_broker.create_topic("compacted", cleanup_policy="compact")
    answer = api.post(
        "/v1/topics/compacted/messages", [{"key": "a", "value": 1}, {"value": 2}, {"key": "b", "value": 3}]
    )
    assert answer.status == 207
    assert [one.get("offset") for one in answer.json["results"]] == [0, None, 1]
    assert "without a key" in answer.json["results"][1]["detail"]


def test_a_raw_body_is_the_value_and_the_query_says_the_rest(api, http_broker, topic):
    query = "?key=k%C3%A4se&header=trace:a:b&header=x:&timestamp=1700000000000"
    assert api.post(f"/v1/topics/{topic}/messages{query}", b"\0\xff", Content_Type=RAW).status == 200
    (found,) = http_broker.messages(topic)
    assert (found.key, found.value, found.headers) == ("käse".encode(), b"\0\xff", (("trace", b"a:b"), ("x", b"")))
    partition, offset = found.partition, found.offset
    raw = api.get(f"/v1/topics/{topic}/partitions/{partition}/messages/{offset}", Accept=RAW)
    assert (raw.body, raw.headers["content-type"]) == (b"\0\xff", RAW)
    assert api.post(f"/v1/topics/{topic}/messages?key_base64=/g==", b"x", Content_Type=RAW).status == 200
    check_problem(api.post(f"/v1/topics/{topic}/messages?header=x", b"x", Content_Type=RAW), 422, "NAME:VALUE")
    check_problem(api.post(f"/v1/topics/{topic}/messages?key=a", {"value": 1}), 422, "raw bodies")
    check_problem(api.ask("POST", f"/v1/topics/{topic}/messages", b"x=1"), 415, "Content-Type")


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("key=%FF", "key in the query is no UTF-8; say a key with key_base64"),
        ("header=trace:%FE", "header in the query is no UTF-8"),
        ("kee=1", "there is no parameter 'kee' here; did you mean 'key'?"),
        ("partition=1", "there are key, key_base64, header, timestamp"),
        ("key=a&%FF=b", "no UTF-8"),
    ],
)
def test_what_a_query_says_is_neither_changed_nor_passed_over(api, http_broker, topic, query, words):
    check_problem(api.post(f"/v1/topics/{topic}/messages?{query}", b"x", Content_Type=RAW), 400, words)
    assert http_broker.messages(topic) == []
    check_problem(api.get(f"/v1/topics/{topic}?verbose=1"), 400, "leave it out")


def test_lines_in_and_lines_out(api, http_broker, topic):
    lines = b"".join(b'{"key": "%d", "value": %d}\n' % (number, number) for number in range(2500))
    answer = api.post(f"/v1/topics/{topic}/messages", lines + b"\n{oops}\n" + b'{"value": "last"}', Content_Type=NDJSON)
    assert (answer.status, answer.headers["content-type"]) == (207, NDJSON)
    results = answer.lines
    assert len(results) == 2502
    assert "no JSON" in results[2500]["detail"]
    assert all("offset" in one for number, one in enumerate(results) if number != 2500)
    place, values = "", []
    while len(values) < 2501:
        query = f"?after={place}" if place else "?from=earliest"
        found = api.get(f"/v1/topics/{topic}/messages{query}&limit=1000", Accept=NDJSON)
        assert found.headers["content-type"] == NDJSON
        place = found.headers["clarion-next"]
        values += [one["value"] for one in found.lines]
    assert sorted(values) == sorted([*map(str, range(2500)), "last"])
    by_partition = [[int(one.value) for one in http_broker.messages(topic, index) if one.key] for index in range(3)]
    assert all(numbers == sorted(numbers) for numbers in by_partition), "what goes to one partition keeps its order"


def test_a_batch_of_lines_has_an_end(api, topic, monkeypatch):
    monkeypatch.setattr("clarion.gateway.message_service.BATCH_MESSAGES_MAX", 10)
    assert bodies.BATCH_MESSAGES_MAX > 10
    check_problem(api.post(f"/v1/topics/{topic}/messages", b'{"value":1}\n' * 11, Content_Type=NDJSON), 413, "messages")


def test_lines_that_end_in_the_middle_say_what_was_written(api, http_broker, topic, monkeypatch):
    monkeypatch.setattr(message_service, "BATCH_MESSAGES_MAX", 1_500)
    answer = api.post(f"/v1/topics/{topic}/messages", b'{"value": "x"}\n' * 2_500, Content_Type=NDJSON)
    assert answer.status == 207
    *written, end = answer.lines
    assert len(written) == len(http_broker.messages(topic)) == 1_000
    assert all("offset" in one for one in written)
    assert end["status"] == 413
    assert "behind the first 1000 messages" in end["detail"]


def test_a_message_that_is_too_large_is_refused_and_says_where_the_limit_is(http_broker, api):
    http_broker.create_topic("small", max_message_bytes=20_000)
    check_problem(api.post("/v1/topics/small/messages", {"value": "x" * 20_000}), 413, "max.message.bytes")
    check_problem(api.post("/v1/topics/small/messages", b"x" * 20_001, Content_Type=RAW), 413, "20000")
    check_problem(api.post("/v1/topics/small/messages", {"value": "x" * 200_000}), 413, "NDJSON")
    line = b'{"value": "' + b"x" * 300_000 + b'"}'
    check_problem(api.post("/v1/topics/small/messages", line, Content_Type=NDJSON), 413)
    several = [{"value": "x" * 9_000, "partition": 0} for _ in range(5)]
    assert api.post("/v1/topics/small/messages", several).status == 200, "several batches"


def test_a_topic_cannot_allow_more_than_the_broker_takes(http_broker, api, topic):
    assert api.ask("PATCH", f"/v1/topics/{topic}", {"settings": {"max.message.bytes": 2**31 - 1}}).status == 200
    headers = {"Content-Type": "application/octet-stream", "Content-Length": "104857601"}
    check_problem(api.ask("POST", f"/v1/topics/{topic}/messages", b"x", headers), 413, "104857600 bytes")


def test_large_values_pass_whole(api, http_broker, topic):
    value = "ä" * 400_000
    assert api.post(f"/v1/topics/{topic}/partitions/0/messages", {"value": value}).status == 200
    assert api.get(f"/v1/topics/{topic}/partitions/0/messages/0").json["value"] == value


def test_messages_without_a_key_go_round_the_partitions(api, topic):
    found = [api.post(f"/v1/topics/{topic}/messages", {"value": "x"}).json["partition"] for _ in range(6)]
    assert found == [0, 1, 2, 0, 1, 2]


def test_reading_by_offset_by_time_and_from_the_end(api, http_broker, topic):
    for number in range(5):
        http_broker.produce(topic, str(number), partition=1, timestamp=1_700_000_000_000 + number * 1000)
    there = f"/v1/topics/{topic}/partitions/1/messages"
    assert [one["value"] for one in api.get(f"{there}?offset=3").json["messages"]] == ["3", "4"]
    assert api.get(f"{there}?offset=3").json["next"] == "1:5"
    assert [one["value"] for one in api.get(f"{there}?from=1700000002500").json["messages"]] == ["3", "4"]
    assert [one["value"] for one in read(api, topic, "?from=2023-11-14T22:13:23Z&limit=1")] == ["3"]
    assert read(api, topic, "?from=latest") == []
    assert read(api, topic, "?from=2999-01-01T00:00:00%2B01:00") == []
    check_problem(api.get(f"{there}?from=yesterday"), 422, "earliest")
    check_problem(api.get(f"{there}?from=2023-11-14T22:13:23"), 422, "zone")
    check_problem(api.get(f"{there}?offset=99"), 416, "earliest")
    check_problem(api.get(f"{there}/99"), 416)
    check_problem(api.get(f"/v1/topics/{topic}/partitions/7/messages"), 404, "from 0 on")
    check_problem(api.get(f"/v1/topics/{topic}/messages?after=x"), 422, "after")
    check_problem(api.get(f"/v1/topics/{topic}/messages?after=1:2:3"), 422, "next")
    check_problem(api.get(f"/v1/topics/{topic}/messages?after=9:0"), 404)


def test_a_read_goes_on_where_the_one_before_ended(api, topic):
    api.post(f"/v1/topics/{topic}/messages", [{"value": number, "key": str(number)} for number in range(20)])
    found, place = [], "0:0,1:0,2:0"
    for _ in range(7):
        answer = api.get(f"/v1/topics/{topic}/messages?after={place}&limit=3").json
        place = answer["next"]
        found += [int(one["value"]) for one in answer["messages"]]
    assert sorted(found) == list(range(20))


def test_so_does_a_read_of_one_partition(api, topic):
    there = f"/v1/topics/{topic}/partitions/1/messages"
    api.post(there, [{"value": number} for number in range(3)])
    first = api.get(f"{there}?limit=2").json
    rest = api.get(f"{there}?limit=2&after={first['next']}").json
    assert [one["value"] for one in first["messages"] + rest["messages"]] == ["0", "1", "2"]
    check_problem(api.get(f"{there}?after=0:0,1:0"), 422, "other partitions")


def test_a_read_waits_for_a_message_that_comes(api, http_broker, topic):
    other = Asker(http_broker.http_url)
    waiting = threading.Thread(target=lambda: results.append(read(other, topic, "?from=latest&wait_ms=30000")))
    results = []
    waiting.start()
    live = http_broker._life.server.broker

    def is_watched():
        return any(one.watchers for one in live.partitions if one.tp.topic == topic)  # Kafka's clients watch others

    http_broker.wait_for(is_watched, 60)
    api.post(f"/v1/topics/{topic}/messages", {"value": "news"})
    waiting.join(60)
    assert [one["value"] for one in results[0]] == ["news"]
    assert not is_watched()
    other.close()


def test_topics_of_the_brokers_own_are_not_written_by_clients(api, http_broker, topic):
    consumer = Consumer({"bootstrap.servers": http_broker.bootstrap, "group.id": "g"})
    consumer.commit(offsets=[TopicPartition(topic, 0, 0)], asynchronous=False)
    consumer.close()
    check_problem(api.post("/v1/topics/__consumer_offsets/messages", {"value": 1}), 422, "broker alone")
