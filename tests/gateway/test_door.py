"""How connections come to the API: loaded at its first use, off the loop, within limits, and never in health's way."""

import contextlib
import socket
import subprocess
import sys
import threading

import pytest

from clarion.broker.config import ListenerConfig
from clarion.gateway import front, serving
from clarion.testing import embedded
from tests.broker.harness import running
from tests.gateway.asking import Asker, check_problem

HEAVY = ("fastapi", "pydantic", "uvicorn", "httptools", "starlette", "websockets", "aiohttp", "sqlalchemy")


def test_nothing_of_it_is_loaded_before_somebody_asks():
    script = f"""
import sys
from urllib.request import urlopen
from clarion.testing import embedded
from tests.broker.harness import running
with embedded(metrics_port=0, clarion_http_share=1.0, topics=["t"]) as broker:
    broker.produce("t", b"x")
    assert urlopen(broker.http_url + "/healthz").read() == b"ok\\n"
    assert b"clarion_topics" in urlopen(broker.http_url + "/metrics").read()
    loaded = [name for name in {HEAVY!r} if name in sys.modules]
    assert not loaded, loaded
    assert b"t" in urlopen(broker.http_url + "/v1/topics").read()
    assert "fastapi" in sys.modules
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)


def test_many_who_ask_first_are_all_answered():
    with embedded(metrics_port=0, clarion_http_share=1.0, topics=["t"]) as broker:
        answers = []
        crowd = [
            threading.Thread(target=lambda: answers.append(Asker(broker.http_url).get("/v1/topics"))) for _ in range(8)
        ]
        for one in crowd:
            one.start()
        assert Asker(broker.http_url).get("/healthz").body == b"ok\n"
        for one in crowd:
            one.join(60)
        assert [one.status for one in answers] == [200] * 8


def test_the_pages_are_also_served_on_a_connection_of_the_api(api):
    assert api.get("/v1/topics").status == 200
    assert api.get("/healthz").body == b"ok\n"
    assert api.get("/readyz").body == b"ready\n"
    metrics = api.get("/metrics")
    assert metrics.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert b'clarion_http_requests_total{route="/v1/topics",status="200"}' in metrics.body
    assert b'clarion_http_request_duration_seconds_count{route="/v1/topics"}' in metrics.body
    assert b"clarion_http_connections 1" in metrics.body


def test_without_the_api_only_the_pages_are_there():
    with embedded(metrics_port=0, clarion_http_api="off") as broker:
        asker = Asker(broker.http_url)
        assert asker.get("/v1/topics").status == 404
        assert Asker(broker.http_url).get("/healthz").status == 200


def say(url: str, *parts: bytes) -> bytes:
    host, _, port = url.removeprefix("http://").partition(":")
    received = b""
    with socket.create_connection((host, int(port)), timeout=60) as sock:
        for part in parts:
            sock.sendall(part)
        with contextlib.suppress(ConnectionError):
            while data := sock.recv(65536):
                received += data
    return received


def test_a_request_may_come_in_pieces_and_with_its_body_behind_it(http_broker, topic):
    body = b'{"value": "x"}'
    head = (
        b"POST /v1/topics/%s/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Connection: close\r\nContent-Length: %d\r\n\r\n" % (topic.encode(), len(body))
    )
    assert b" 200 " in say(http_broker.http_url, *(bytes([one]) for one in head + body))
    assert b" 200 " in say(http_broker.http_url, head + body)


def test_two_requests_in_one_go_are_answered_in_order(http_broker, topic):
    first = b"GET /v1/topics/%s HTTP/1.1\r\nHost: localhost\r\n\r\n" % topic.encode()
    second = b"GET /v1/nothing HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    said = say(http_broker.http_url, first + second)
    assert said.index(b" 200 ") < said.index(b" 404 ")


def test_a_second_head_that_never_ends_is_cut_off(http_broker, monkeypatch):
    whole = b"GET /v1/cluster HTTP/1.1\r\nHost: localhost\r\n\r\n"
    assert say(http_broker.http_url, whole, b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 60_000).count(b" 200 ") <= 1
    monkeypatch.setattr(serving, "_HEAD_SECONDS_MAX", 0.2)
    assert say(http_broker.http_url, whole, b"GET / HTT").count(b"HTTP/1.1 ") == 1


def test_what_is_no_http_is_refused(http_broker):
    whole = b"GET /v1/cluster HTTP/1.1\r\nHost: localhost\r\n\r\n"
    assert b" 400 " in say(http_broker.http_url, whole, b"\x16\x03\x01nonsense\r\n\r\n")


def test_a_body_that_stops_coming_ends_its_request(http_broker, topic, monkeypatch):
    monkeypatch.setattr(front, "_CHUNK_SECONDS_MAX", 0.2)
    head = (
        b"POST /v1/topics/%s/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: 100\r\n\r\n{" % topic.encode()
    )
    assert b" 408 " in say(http_broker.http_url, head)
    assert http_broker.messages(topic) == []


def test_a_body_that_the_framework_reads_has_limits_too(api, http_broker, monkeypatch):
    body = b'{"name": "x", "topics": [' + b'"a",' * 1_000_000 + b'"a"]}'
    check_problem(api.post("/v1/subscriptions", body, Content_Type="application/json"), 413, "2097152 bytes")
    head = (
        b"POST /v1/subscriptions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: 100\r\n\r\n"
    )
    monkeypatch.setattr(front, "_CHUNK_SECONDS_MAX", 0.2)
    assert b" 408 " in say(http_broker.http_url, head + b"{")
    monkeypatch.setattr(front, "_BODY_SECONDS_MAX", -1.0)
    assert b"took longer" in say(http_broker.http_url, head + b"{")


def test_idle_connections_give_way_and_busy_ones_do_not():
    with embedded(metrics_port=0, clarion_http_share=1.0, topics=["t"], clarion_http_max_connections=2) as broker:
        idle = [Asker(broker.http_url) for _ in range(5)]
        for one in idle:
            assert one.get("/v1/topics").status == 200
        for one in idle:
            one.close()
        busy = [Asker(broker.http_url) for _ in range(2)]
        threads = [
            threading.Thread(target=one.get, args=("/v1/topics/t/messages?from=latest&wait_ms=30000",)) for one in busy
        ]
        for thread in threads:
            thread.start()
        live = broker._life.server.broker
        broker.wait_for(lambda: any(len(one.watchers) == 2 for one in live.partitions), 60)
        answer = Asker(broker.http_url).get("/v1/topics")
        check_problem(answer, 503, "clarion.http.max.connections")
        assert answer.headers["retry-after"] == "1"
        assert Asker(broker.http_url).get("/healthz").status == 200
        broker.produce("t", b"news")
        for thread in threads:
            thread.join(60)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}, 403),  # an image: it names no origin
        ({"Sec-Fetch-Site": "same-site"}, 403),  # another port of this machine
        ({"Sec-Fetch-Site": "same-origin"}, 200),
        ({"Sec-Fetch-Site": "none"}, 200),  # typed in
        ({"Host": "evil.example:80"}, 421),
        ({"Host": "localhost:1"}, 200),
        ({"Host": "[::1]:1"}, 200),
        ({"Host": "127.0.0.1", "Origin": "http://127.0.0.1"}, 200),
    ],
)
def test_pages_of_others_in_a_browser_cannot_use_a_broker_on_loopback(api, headers, status):
    answer = api.ask("GET", "/v1/topics", headers=headers)
    assert answer.status == status
    if status != 200:
        check_problem(answer, status)


def test_nor_can_they_read_the_metrics_by_a_name_of_their_own(api, http_broker):
    assert api.get("/v1/topics").status == 200  # from here on it is a connection of the API
    new = say(http_broker.http_url, b"GET /metrics HTTP/1.1\r\nHost: evil.example:80\r\n\r\n")
    assert b" 421 " in new
    assert b"clarion_" not in new
    check_problem(api.get("/metrics", Host="evil.example"), 421)
    for host in ("localhost", "127.0.0.1:9644", "[::1]:9644"):
        assert api.get("/metrics", Host=host).status == 200
        assert b" 200 " in say(http_broker.http_url, b"GET /metrics HTTP/1.1\r\nHost: %s\r\n\r\n" % host.encode())
    assert api.get("/healthz", Host="evil.example").status == 200
    assert b" 200 " in say(http_broker.http_url, b"GET /healthz HTTP/1.1\r\nHost: evil.example\r\n\r\n")
    assert b" 200 " in say(http_broker.http_url, b"GET /metrics HTTP/1.0\r\n\r\n"), "who says no name is no browser"


def test_the_address_is_told_by_describe_configs(http_broker):
    from confluent_kafka.admin import AdminClient, ConfigResource

    admin = AdminClient({"bootstrap.servers": http_broker.bootstrap})
    resource = ConfigResource(ConfigResource.Type.BROKER, "1")
    settings = admin.describe_configs([resource])[resource].result(60)
    assert settings["clarion.http.advertised"].value == http_broker.http_url.removeprefix("http://")


def test_a_stop_ends_what_waits():
    with embedded(metrics_port=0, clarion_http_share=1.0, topics=["t"]) as broker:
        asker = Asker(broker.http_url)
        failed = threading.Event()

        def wait() -> None:
            try:
                asker.get("/v1/topics/t/messages?from=latest&wait_ms=30000")
            except OSError:
                failed.set()

        thread = threading.Thread(target=wait)
        thread.start()
        live = broker._life.server.broker
        broker.wait_for(lambda: any(one.watchers for one in live.partitions), 60)
        broker.stop()
        thread.join(60)
        assert not thread.is_alive()


async def test_an_address_that_nobody_can_connect_to_is_not_told(tmp_path):
    listener = ListenerConfig(port=0, advertised_host="broker.example")
    async with running(tmp_path, listeners=(listener,), metrics_host="0.0.0.0", metrics_port=0) as node:
        assert node.broker.config.http_advertised == f"broker.example:{node.server.metrics_address.port}"
