"""A client that knows one broker knows the cluster: what another one leads is asked of that one."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from clarion.gateway.subscription_routes import heard_of
from clarion.testing import EmbeddedCluster, cluster
from tests.gateway.asking import Asker, check_problem


@pytest.fixture(scope="module")
def brokers():
    with cluster(brokers=2, topics={"orders": 4}, metrics_port=0, clarion_http_share=1.0) as brokers:
        yield brokers


@pytest.fixture
def askers(brokers: EmbeddedCluster):
    askers = [Asker(broker.http_url) for broker in brokers]
    yield askers
    for one in askers:
        one.close()


def test_every_partition_is_written_and_read_at_every_broker(brokers, askers):
    assert {brokers.leader_of("orders", index) for index in range(4)} == {1, 2}
    for index in range(4):
        there = f"/v1/topics/orders/partitions/{index}/messages"
        offsets = [one.post(there, {"value": f"{index}"}).json["offset"] for one in askers]
        assert offsets == [0, 1]
        for one in askers:
            assert [found["value"] for found in one.get(there).json["messages"]] == [str(index)] * 2
            assert one.get(f"{there}?from=latest").json["messages"] == []
    for one in askers:
        described = one.get("/v1/topics/orders").json["partitions"]
        assert [part["high_watermark"] for part in described] == [2] * 4
        assert [part["leader"] for part in described] == [brokers.leader_of("orders", index) for index in range(4)]


def test_an_idempotency_key_holds_whichever_broker_is_asked(askers):
    first, second = (one.post("/v1/topics/orders/messages", {"value": "x"}, Idempotency_Key="k") for one in askers)
    assert first.status == 200
    assert first.json == second.json
    for one in askers:
        check_problem(one.post("/v1/topics/orders/messages", {"value": "y"}, Idempotency_Key="k"), 422, "another")


def test_refusals_of_another_broker_are_told_as_ones_own(brokers, askers):
    for index in range(4):
        for one in askers:
            check_problem(one.get(f"/v1/topics/orders/partitions/{index}/messages?offset=999"), 416)
            big = {"value": "x" * 1_048_600}
            check_problem(one.post(f"/v1/topics/orders/partitions/{index}/messages", big), 413, "max.message.bytes")


def test_a_read_waits_for_what_another_broker_leads(brokers, askers):
    other = next(index for index in range(4) if brokers.leader_of("orders", index) == 2)
    there = f"/v1/topics/orders/partitions/{other}/messages"
    end = askers[0].get(f"{there}?from=latest").json["next"].partition(":")[2]
    askers[1].post(there, {"value": "news"})
    found = askers[0].get(f"{there}?offset={end}&wait_ms=30000").json["messages"]
    assert [one["value"] for one in found] == ["news"]


def test_topics_are_made_and_deleted_at_any_broker_and_the_cluster_is_described(brokers, askers):
    for number, one in enumerate(askers):
        assert one.post("/v1/topics", {"name": f"made-{number}", "partitions": 2}).status == 201
        other = askers[1 - number]
        brokers.wait_for(lambda other=other, number=number: other.get(f"/v1/topics/made-{number}").status == 200)
        assert other.ask("DELETE", f"/v1/topics/made-{number}").status == 200
        told = one.get("/v1/cluster").json
        assert [each["id"] for each in told["brokers"]] == [1, 2]
        assert told["broker_id"] == number + 1
        assert [f"http://{each['http']}" for each in told["brokers"]] == [broker.http_url for broker in brokers]


def test_keys_and_writes_go_on_after_a_leader_is_gone():
    with cluster(brokers=3, topics={"t": 1}, metrics_port=0, clarion_http_share=1.0) as brokers:
        leader = brokers.leader_of("t")
        asker = Asker(brokers[1 + leader % 3].http_url)
        first = asker.post("/v1/topics/t/messages", {"value": "x"}, Idempotency_Key="k")
        assert first.status == 200
        brokers.kill(leader)
        brokers.wait_for(lambda: asker.post("/v1/topics/t/messages", {"value": "x"}, Idempotency_Key="k").status == 200)
        assert asker.post("/v1/topics/t/messages", {"value": "x"}, Idempotency_Key="k").json == first.json


def test_a_subscription_that_another_broker_has_just_made_is_known_at_once(brokers, askers):
    for number, one in enumerate(askers):
        other, name = askers[1 - number], f"fresh-{number}"
        assert one.post("/v1/subscriptions", {"name": name, "topics": ["orders"]}).status == 201
        assert other.get(f"/v1/subscriptions/{name}").json["name"] == name
        name = f"fresher-{number}"
        assert one.post("/v1/subscriptions", {"name": name, "topics": ["orders"]}).status == 201
        assert other.post(f"/v1/subscriptions/{name}:pull", {"consumer": "c", "max_messages": 1}).status == 200
        assert other.get(f"/v1/groups/{name}").status == 200
        check_problem(other.get("/v1/subscriptions/nobodys"), 404)


async def test_the_catalog_is_asked_once_for_all_who_wait_to_hear_of_a_name():
    """One that does not answer costs each of them two seconds at a time, and not one after the other."""
    asked, answers = 0, asyncio.Event()

    async def look_again() -> bool:
        nonlocal asked
        asked += 1
        await answers.wait()
        return False

    subscriptions: Any = SimpleNamespace(get=lambda name: None, look_again=look_again)
    brokers: Any = SimpleNamespace(broker=SimpleNamespace(subscriptions=subscriptions))
    hear_of = heard_of(brokers).dependency
    waiting = [
        asyncio.create_task(hear_of(SimpleNamespace(path_params={"name": f"nobodys-{number}"}))) for number in range(20)
    ]
    await asyncio.sleep(0)
    assert asked == 1
    waiting.pop(0).cancel()  # the client that asked has gone; what it has not heard, the others have not either
    await asyncio.sleep(0.01)
    assert asked == 2
    late = asyncio.create_task(hear_of(SimpleNamespace(path_params={"name": "late"})))
    await asyncio.sleep(0)
    waiting.pop(0).cancel()
    await asyncio.sleep(0.01)
    assert asked == 3
    answers.set()
    await asyncio.gather(*waiting, late)
    assert asked == 3
    await hear_of(SimpleNamespace(path_params={"name": "nobodys"}))
    assert asked == 4
