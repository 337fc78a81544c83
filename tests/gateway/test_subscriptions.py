"""/v1/subscriptions and /v1/groups: from the first pull to the last letter."""

import threading
from itertools import count

import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.gateway.asking import Asker, check_problem

_numbers = count()


@pytest.fixture
def queue(api, topic) -> str:
    name = f"queue-{next(_numbers)}"
    answer = api.post("/v1/subscriptions", {"name": name, "topics": [topic], "ack_timeout": "30s", "max_deliveries": 2})
    assert answer.status == 201, answer
    assert answer.headers["location"] == f"/v1/subscriptions/{name}"
    return name


def pull(api, queue, **asked):
    answer = api.post(f"/v1/subscriptions/{queue}:pull", asked)
    assert answer.status == 200, answer
    return answer.json["messages"]


def settle(api, queue, *settlements):
    return api.post(f"/v1/subscriptions/{queue}:settle", {"settlements": list(settlements)})


def test_a_message_is_pulled_and_acknowledged_and_does_not_come_again(api, topic, queue):
    api.post(f"/v1/topics/{topic}/messages", {"key": "k", "value": {"total": 1}, "headers": {"h": "v"}})
    (found,) = pull(api, queue, encoding="json", wait_ms=30_000)
    assert (found["topic"], found["key"], found["value"], found["deliveries"]) == (topic, "k", {"total": 1}, 1)
    assert found["headers"] == [{"name": "h", "value": "v"}]
    answer = settle(api, queue, {"receipt": found["receipt"]})
    assert answer.json == {"results": [{"receipt": found["receipt"], "status": 200, "code": None, "detail": None}]}
    assert pull(api, queue) == []
    again = settle(api, queue, {"receipt": found["receipt"]}, {"receipt": "nonsense"})
    assert again.status == 207
    assert [one["status"] for one in again.json["results"]] == [409, 400]


def test_what_is_released_comes_again_and_what_is_rejected_becomes_a_dead_letter(api, topic, queue):
    api.post(f"/v1/topics/{topic}/partitions/0/messages", {"value": "x"})
    (first,) = pull(api, queue, wait_ms=30_000)
    assert settle(api, queue, {"receipt": first["receipt"], "action": "release", "delay": "0s"}).status == 200
    (second,) = pull(api, queue, wait_ms=30_000)
    assert second["deliveries"] == 2
    assert settle(api, queue, {"receipt": second["receipt"], "action": "extend", "extend": "1m"}).status == 200
    rejected = settle(api, queue, {"receipt": second["receipt"], "action": "reject", "reason": "no such customer"})
    assert rejected.status == 200, rejected
    letters = f"/v1/topics/{queue}.dead-letters/messages?wait_ms=30000"
    for _ in range(60):
        answer = api.get(letters)
        if answer.status == 200 and answer.json["messages"]:
            break
    (letter,) = answer.json["messages"]
    told = {one["name"]: one["value"] for one in letter["headers"]}
    assert (letter["value"], told["clarion-dead-letter-reason"]) == ("x", "no such customer")
    assert api.get(f"/v1/subscriptions/{queue}").json["dead_letters"]["count"] == 1
    assert api.post(f"/v1/subscriptions/{queue}:redrive", {}).json["sent"] == 1
    assert [one["value"] for one in pull(api, queue, wait_ms=30_000)] == ["x"]


def test_what_is_pushed_cannot_be_pulled_and_what_its_headers_say_is_not_described(api, topic):
    push = {"url": "https://192.0.2.1/hook", "headers": {"Authorization": "Bearer secret-token"}}
    said = {"name": f"pushed-{topic}", "topics": [topic], "push": push}
    assert api.post("/v1/subscriptions", said).status == 201
    assert api.post("/v1/subscriptions", said).status == 201, "the same once more"
    other = {**said, "push": {**push, "headers": {"Authorization": "Bearer another"}}}
    check_problem(api.post("/v1/subscriptions", other), 409, "push")
    described = api.get(f"/v1/subscriptions/pushed-{topic}")
    assert described.json["subscription"]["push"]["headers"] == {"Authorization": "(hidden)"}
    assert b"secret-token" not in described.body
    for verb in ("pause", "resume"):
        assert b"secret-token" not in api.post(f"/v1/subscriptions/pushed-{topic}:{verb}").body
    check_problem(api.post(f"/v1/subscriptions/pushed-{topic}:pull", {}), 400, "pushed to its endpoint")
    assert api.ask("DELETE", f"/v1/subscriptions/pushed-{topic}").status == 204


def test_a_pull_waits_for_a_message_that_comes(api, http_broker, topic, queue):
    found, other = [], Asker(http_broker.http_url)
    waiting = threading.Thread(target=lambda: found.append(pull(other, queue, wait_ms=30_000)))
    waiting.start()
    api.post(f"/v1/topics/{topic}/messages", {"value": "news"})
    waiting.join(60)
    assert [one["value"] for one in found[0]] == ["news"]
    other.close()


def test_a_subscription_is_listed_described_peeked_into_paused_moved_and_deleted(api, topic, queue):
    api.post(f"/v1/topics/{topic}/messages", [{"value": number, "partition": 0} for number in range(3)])
    listed = api.get("/v1/subscriptions").json["subscriptions"]
    assert queue in [one["name"] for one in listed]
    assert len(pull(api, queue, max_messages=1, consumer="worker-7", wait_ms=30_000)) == 1
    told = api.get(f"/v1/subscriptions/{queue}").json
    assert (told["mode"], told["in_flight"]) == ("queue", 1)
    assert told["subscription"]["ack_timeout"] == "30s"
    peeked = api.post(f"/v1/subscriptions/{queue}:peek?max_messages=2").json["messages"]
    assert [(one["value"], one["deliveries"], one["holder"]) for one in peeked] == [("0", 1, "worker-7"), ("1", 0, "")]
    assert api.post(f"/v1/subscriptions/{queue}:pause").json["paused"] is True
    assert pull(api, queue) == []
    assert api.post(f"/v1/subscriptions/{queue}:resume").json["paused"] is False
    assert api.ask("PATCH", f"/v1/subscriptions/{queue}", {"max_deliveries": 7}).json["max_deliveries"] == 7
    assert api.ask("DELETE", f"/v1/subscriptions/{queue}").status == 204
    check_problem(api.get(f"/v1/subscriptions/{queue}"), 404, "no subscription")


def test_what_cannot_be_is_refused_and_says_why(api, topic, queue):
    check_problem(api.post("/v1/subscriptions", {"name": "x y", "topics": [topic]}), 400, "letters")
    check_problem(api.post("/v1/subscriptions", {"name": "x", "topics": [topic], "mode": "heap"}), 400, "mode")
    check_problem(api.post("/v1/subscriptions", {"name": "x", "tpics": [topic]}), 422, "tpics")
    check_problem(api.post("/v1/subscriptions/nobody:pull", {}), 404, "no subscription")
    check_problem(api.post(f"/v1/subscriptions/{queue}:pull", {"max_messages": 0}), 422, "max_messages")
    check_problem(settle(api, queue, {"receipt": "x", "action": "release", "delay": "soon"}), 400, "duration")
    check_problem(api.post(f"/v1/subscriptions/{queue}:seek", {}), 400, "to")
    check_problem(api.post(f"/v1/subscriptions/{queue}:dance"), 405)


def test_groups_of_kafkas_clients_are_listed_and_described_with_their_lag(api, http_broker, topic):
    api.post(f"/v1/topics/{topic}/messages", [{"value": number, "partition": 1} for number in range(5)])
    consumer = Consumer({"bootstrap.servers": http_broker.bootstrap, "group.id": f"readers-{topic}"})
    consumer.commit(offsets=[TopicPartition(topic, 1, 2)], asynchronous=False)
    consumer.close()
    (listed,) = [one for one in api.get("/v1/groups").json["groups"] if one["name"] == f"readers-{topic}"]
    assert listed["is_subscription"] is False
    told = api.get(f"/v1/groups/readers-{topic}").json
    assert told["lag"] == 3
    (place,) = [one for one in told["partitions"] if one["partition"] == 1]
    assert (place["position"], place["end_offset"], place["lag"]) == (2, 5, 3)
    assert api.ask("DELETE", f"/v1/groups/readers-{topic}").status == 204
    check_problem(api.get(f"/v1/groups/readers-{topic}"), 404)


def test_a_queue_is_moved_and_emptied(api, topic, queue):
    api.post(f"/v1/topics/{topic}/messages", [{"value": number, "partition": 0} for number in range(5)])
    (first,) = pull(api, queue, max_messages=1, wait_ms=30_000)
    assert settle(api, queue, {"receipt": first["receipt"]}).status == 200
    assert api.post(f"/v1/subscriptions/{queue}:purge").json == {"passed_over": 4}
    assert pull(api, queue) == []
    moved = api.post(f"/v1/subscriptions/{queue}:seek", {"offsets": {topic: {"0": 3}}})
    assert moved.json == {"positions": [{"topic": topic, "partition": 0, "offset": 3}]}
    topic_id = api.get(f"/v1/topics/{topic}").json["id"]
    assert api.post(f"/v1/subscriptions/{queue}:seek", {"offsets": {topic_id: {"0": 3}}}).json == moved.json
    assert [one["offset"] for one in pull(api, queue, wait_ms=30_000)] == [3, 4]
    check_problem(api.post(f"/v1/subscriptions/{queue}:seek", {"offsets": {topic: {"0": 99}}}), 400, "99")
