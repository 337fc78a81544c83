"""/v1/topics: make, list, describe, change, delete; a topic is named by its name or its id."""

from uuid import UUID

from confluent_kafka import Consumer, TopicPartition

from clarion.model.ids import topic_id_text
from clarion.testing import embedded
from tests.gateway.asking import Asker, check_problem


def test_a_topic_is_made_and_answered_with_its_name_and_id(api, http_broker):
    answer = api.post("/v1/topics", {"name": "made", "partitions": 2, "settings": {"retention.ms": 60_000}})
    assert answer.status == 201
    assert answer.headers["location"] == "/v1/topics/made"
    assert {**answer.json, "id": ""} == {"name": "made", "id": "", "partitions": 2, "is_internal": False}
    assert UUID(answer.json["id"])


def test_a_topic_that_exists_is_not_made_again(api, topic):
    said = check_problem(api.post("/v1/topics", {"name": topic}), 409, "already exists")
    assert said["code"] == "TOPIC_ALREADY_EXISTS"


def test_senseless_topics_are_refused_and_told_why(api):
    check_problem(api.post("/v1/topics", {"name": "no spaces"}), 422, "only letters")
    check_problem(api.post("/v1/topics", {"name": "ok", "partitions": 0}), 422, "partitions")
    check_problem(api.post("/v1/topics", {"name": "ok", "settings": {"no.such": "1"}}), 422, "no.such")
    check_problem(api.post("/v1/topics", {"name": "ok", "colour": "red"}), 422, "colour")
    check_problem(api.post("/v1/topics", {"name": "ok", "replication_factor": 3}), 422)
    check_problem(api.post("/v1/topics", b"{", Content_Type="application/json"), 400, "no JSON")
    check_problem(api.post("/v1/topics", {}), 422, "name")
    check_problem(api.get("/v1/topics/ok"), 404)


def test_topics_are_listed_in_order_and_internal_ones_on_request():
    with embedded(metrics_port=0, clarion_http_share=1.0, topics={"b": 2, "a": 1}) as broker:
        api = Asker(broker.http_url)
        assert [(one["name"], one["partitions"]) for one in api.get("/v1/topics").json["topics"]] == [
            ("a", 1),
            ("b", 2),
        ]
        consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "readers"})
        consumer.commit(offsets=[TopicPartition("a", 0, 0)], asynchronous=False)
        consumer.close()
        assert [one["name"] for one in api.get("/v1/topics").json["topics"]] == ["a", "b"]
        internal = api.get("/v1/topics?internal=true").json["topics"]
        assert [one["name"] for one in internal if one["is_internal"]] == ["__consumer_offsets"]


def test_a_topic_is_described_by_name_and_by_id(api, topic):
    api.post(f"/v1/topics/{topic}/partitions/1/messages", {"value": "x"})
    by_name = api.get(f"/v1/topics/{topic}").json
    assert by_name["name"] == topic
    assert by_name["settings"]["cleanup.policy"] == "delete"
    assert by_name["overrides"] == {}
    assert [one["high_watermark"] for one in by_name["partitions"]] == [0, 1, 0]
    first = by_name["partitions"][0]
    assert (first["leader"], first["replicas"], first["in_sync"], first["start_offset"]) == (1, [1], [1], 0)
    assert api.get(f"/v1/topics/{by_name['id']}").json == by_name
    assert api.get(f"/v1/topics/{by_name['id'].replace('-', '')}").json == by_name
    as_kafkas_tools_spell_it = topic_id_text(UUID(by_name["id"]))
    assert api.get(f"/v1/topics/{as_kafkas_tools_spell_it}").json == by_name
    assert api.post(f"/v1/topics/{as_kafkas_tools_spell_it}/messages", {"value": "y"}).json["topic"] == topic


def test_a_subscription_is_made_of_topics_by_their_ids(api, topic):
    topic_id = UUID(api.get(f"/v1/topics/{topic}").json["id"])
    for number, text in enumerate((str(topic_id), topic_id_text(topic_id))):
        made = api.post("/v1/subscriptions", {"name": f"{topic}-{number}", "topics": [text]})
        assert (made.status, made.json["topics"]) == (201, [topic])
        changed = api.ask("PATCH", f"/v1/subscriptions/{topic}-{number}", {"topics": [text, topic]})
        assert changed.json["topics"] == [topic]
    check_problem(api.post("/v1/subscriptions", {"name": "x", "topics": [str(UUID(int=7))]}), 404)


def test_a_body_that_does_not_say_that_it_is_json_is_told_to(api):
    for path in ("/v1/topics", "/v1/subscriptions"):
        answer = api.post(path, b'{"name": "x"}', Content_Type="application/x-www-form-urlencoded")
        check_problem(answer, 415, "Content-Type: application/json")


def test_what_nobody_has_made_is_not_found(api):
    said = check_problem(api.get("/v1/topics/nothing"), 404, "GET /v1/topics lists")
    assert said["type"] == "urn:clarion:problem:unknown-topic-or-partition"
    check_problem(api.get("/v1/topics/00000000-0000-0000-0000-000000000001"), 404, "no topic with the id")
    check_problem(api.ask("DELETE", "/v1/topics/nothing"), 404)
    check_problem(api.ask("PATCH", "/v1/topics/nothing", {"settings": {}}), 404)


def test_settings_are_changed_and_taken_back(api, topic):
    changed = api.ask("PATCH", f"/v1/topics/{topic}", {"settings": {"retention.ms": 1000, "cleanup.policy": "compact"}})
    assert changed.status == 200
    assert changed.json["overrides"] == {"retention.ms": "1000", "cleanup.policy": "compact"}
    back = api.ask("PATCH", f"/v1/topics/{topic}", {"settings": {"cleanup.policy": None}})
    assert back.json["overrides"] == {"retention.ms": "1000"}
    assert back.json["settings"]["cleanup.policy"] == "delete"
    check_problem(api.ask("PATCH", f"/v1/topics/{topic}", {"settings": {"retention.ms": "soon"}}), 422, "retention.ms")


def test_times_and_sizes_are_said_as_people_write_them(api, topic):
    said = {"retention.ms": "1d", "segment.bytes": "64MiB"}
    assert api.post("/v1/topics", {"name": f"{topic}-day", "settings": said}).status == 201
    assert api.get(f"/v1/topics/{topic}-day").json["overrides"] == {
        "retention.ms": "86400000",
        "segment.bytes": "67108864",
    }
    changed = api.ask("PATCH", f"/v1/topics/{topic}", {"settings": {"retention.ms": "90m"}}).json
    assert changed["overrides"]["retention.ms"] == "5400000"


def test_a_topic_gets_more_partitions_and_never_fewer(api, topic):
    assert len(api.ask("PATCH", f"/v1/topics/{topic}", {"partitions": 5}).json["partitions"]) == 5
    check_problem(api.ask("PATCH", f"/v1/topics/{topic}", {"partitions": 2}), 422)


def test_a_deleted_topic_is_gone_under_both_its_names(api, topic):
    topic_id = api.get(f"/v1/topics/{topic}").json["id"]
    assert api.ask("DELETE", f"/v1/topics/{topic_id}").json["name"] == topic
    check_problem(api.get(f"/v1/topics/{topic}"), 404)
    check_problem(api.get(f"/v1/topics/{topic_id}"), 404)


def test_topics_that_cannot_be_deleted_say_so():
    with embedded(metrics_port=0, clarion_http_share=1.0, topics=["kept"], delete_topic_enable=False) as broker:
        api = Asker(broker.http_url)
        check_problem(api.ask("DELETE", "/v1/topics/kept"), 403, "delete.topic.enable")


def test_the_cluster_is_described(api, topic):
    told = api.get("/v1/cluster").json
    assert told["broker_id"] == told["controller_id"] == 1
    assert [one["id"] for one in told["brokers"]] == [1]
    assert told["topics"] >= 1
    assert told["health"]["is_ready"] is True
    assert told["health"]["reason"] is None
