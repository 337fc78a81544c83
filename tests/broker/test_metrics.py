"""The numbers of a busy broker, all of them; its health; and what a small HTTP server says to senseless requests."""

import asyncio
import contextlib
import socket
import time

import pytest

from clarion.broker import metrics_page
from clarion.broker.cluster_metrics import REPLICATION_LAG
from clarion.broker.config import Durability, ListenerConfig
from clarion.broker.http_numbers import HTTP_REQUESTS, HTTP_SECONDS
from clarion.broker.loop_lag import WINDOW_SECONDS, LoopLag
from clarion.broker.metrics import METRICS
from clarion.broker.metrics_page import LABEL_CHARS_MAX, LEFT_OUT, PAGE_BYTES_MAX, write_page
from clarion.net import http
from clarion.wire.messages.metadata import FindCoordinatorRequest
from clarion.wire.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tests.broker.harness import Node, running
from tests.broker.talk import NEW_SESSION, batch

T0 = ("t", 0)
QUICK = {"durability": Durability.PAGE_CACHE, "metrics_port": 0}


@pytest.fixture(autouse=True)
def fresh_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """These stories change the numbers and look again at once."""
    monkeypatch.setattr(metrics_page, "FRESH_SECONDS", 0.0)


async def get(node: Node, path: str) -> tuple[int, str]:
    return parsed(await say(node, b"GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n" % path.encode()))


async def say(node: Node, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(*node.server.metrics_address)
    writer.write(request)
    try:
        return await asyncio.wait_for(reader.read(), 60)
    finally:
        writer.close()


def parsed(page: bytes) -> tuple[int, str]:
    head, _, body = page.partition(b"\r\n\r\n")
    length = int(head.partition(b"Content-Length: ")[2].split(b"\r\n")[0])
    assert length == len(body)
    return int(head.split(b" ")[1]), body.decode()


async def scrape(node: Node) -> dict[str, float]:
    status, page = await get(node, "/metrics")
    assert status == 200
    lines = [line.rpartition(" ") for line in page.splitlines() if line and not line.startswith("#")]
    return {name: float(value) for name, _, value in lines}


def hold_up_the_loop() -> None:
    """What no handler may do: nobody is served meanwhile."""
    time.sleep(0.5)


async def test_the_lag_of_the_event_loop_is_told_when_something_has_held_it_up(tmp_path):
    async with running(tmp_path, **QUICK) as node:
        hold_up_the_loop()

        async def is_told() -> bool:
            return (await scrape(node))["clarion_event_loop_lag_seconds"] > 0.3

        async with asyncio.timeout(60):
            while not await is_told():
                pass


async def test_the_worst_lag_is_told_to_all_who_ask_and_forgotten_after_two_windows():
    lag = LoopLag()
    lag.stop()
    began = asyncio.get_running_loop().time()
    lag.note(2.0, began)
    lag.note(0.1, began + 1)
    assert lag.worst_seconds() == lag.worst_seconds() == 2.0
    lag.note(0.2, began + WINDOW_SECONDS + 1)
    assert lag.worst_seconds() == 2.0, "of the window before"
    lag.note(0.3, began + 2 * WINDOW_SECONDS + 2)
    assert lag.worst_seconds() == 0.3


async def work(node: Node) -> None:
    await node.topic(partitions=2)
    for number in range(10):
        await node.client.produce({T0: batch(b"%d" % number)})
    await node.client.fetch({T0: 0}, session=NEW_SESSION)
    await node.ask(FindCoordinatorRequest(key="g", key_type=0), 2)
    asked = OffsetCommitRequestTopic(
        name="t", partitions=(OffsetCommitRequestPartition(partition_index=0, committed_offset=4),)
    )
    await node.ask(OffsetCommitRequest(group_id="g", topics=(asked,)), 5)
    node.broker.endpoints.of("billing").delivered_total = 3  # tests/gateway has endpoints that are pushed to


async def test_every_metric_is_there_when_a_broker_is_busy(tmp_path):
    async with running(tmp_path, **QUICK) as node:
        await work(node)
        await node.broker.configure_topic("t", lambda topic: {"clarion.retention.by": "subscriptions"})
        await node.server.housekeeping.retain()  # which finds who holds what
        status, page = await get(node, "/metrics")
        assert status == 200
        for metric in METRICS.values():
            if metric in (REPLICATION_LAG, HTTP_REQUESTS, HTTP_SECONDS):
                continue  # of a cluster, and of the HTTP API; test_cluster_metrics and tests/gateway have them
            family = metric.name.removesuffix("_total") if metric.kind == "counter" else metric.name
            assert f"# TYPE {metric.name} {metric.kind}" in page or f"# TYPE {family} {metric.kind}" in page, metric
            shown = f"{metric.name}_bucket" if metric.kind == "histogram" else metric.name
            assert f"\n{shown}{{" in page or f"\n{shown} " in page, metric
        assert "process_resident_memory_bytes" in page


async def test_the_numbers_are_true(tmp_path):
    async with running(tmp_path, **QUICK) as node:
        await work(node)
        found = await scrape(node)
        expected = {
            'clarion_messages_in_total{topic="t"}': 10,
            'clarion_bytes_in_total{topic="t"}': 10 * len(batch(b"0")),
            'clarion_bytes_out_total{topic="t"}': 10 * len(batch(b"0")),
            'clarion_log_end_offset{partition="0",topic="t"}': 10,
            'clarion_high_watermark_offset{partition="0",topic="t"}': 10,
            'clarion_group_committed_offset{group="g",partition="0",topic="t"}': 4,
            'clarion_group_lag_messages{group="g",partition="0",topic="t"}': 6,
            'clarion_requests_total{api="Produce"}': 10,
            "clarion_connections": 1,
            "clarion_fetch_sessions": 1,
            "clarion_topics": 2,
            "clarion_partitions_offline": 0,
        }
        assert {name: found.get(name) for name in expected} == expected


async def test_every_answered_request_is_timed_whether_it_waited_or_not(tmp_path):
    async with running(tmp_path, **QUICK) as node:
        await work(node)
        found = await scrape(node)
        for api in ("Produce", "Fetch", "OffsetCommit", "FindCoordinator"):
            counted = found[f'clarion_request_duration_seconds_count{{api="{api}"}}']
            assert counted == found[f'clarion_requests_total{{api="{api}"}}'] > 0
            assert counted == found[f'clarion_request_duration_seconds_bucket{{api="{api}",le="+Inf"}}']
        await node.client.fetch({T0: 10}, max_wait=300, min_bytes=1)
        after = await scrape(node)
        quick = 'clarion_request_duration_seconds_bucket{api="Fetch",le="0.25"}'
        assert after[quick] == found[quick], "it waited for messages that did not come"
        waited = 'clarion_request_duration_seconds_count{api="Fetch"}'
        assert after[waited] == found[waited] + 1


async def test_flushes_are_timed(tmp_path):
    async with running(tmp_path, metrics_port=0) as node:
        await work(node)
        found = await scrape(node)
        assert found["clarion_flush_duration_seconds_count"] > 0
        assert found["clarion_flush_duration_seconds_sum"] > 0
        assert found["clarion_flush_duration_seconds_count"] <= found["clarion_flushes_total"]


async def test_lag_counts_what_can_still_be_read(tmp_path):
    async with running(tmp_path, **QUICK) as node:
        await work(node)
        node.partition().log.advance_start(8)
        assert (await scrape(node))['clarion_group_lag_messages{group="g",partition="0",topic="t"}'] == 2
        await node.broker.delete_topic("t")
        assert not [name for name in await scrape(node) if "lag" in name and 'topic="t"' in name]


async def test_names_cannot_break_out_of_their_labels(tmp_path):
    async with running(tmp_path, **QUICK) as node:
        await node.topic()
        evil = 'g"} 1\nclarion_evil 666\n#'
        await node.ask(FindCoordinatorRequest(key=evil, key_type=0), 2)
        asked = OffsetCommitRequestTopic(
            name="t", partitions=(OffsetCommitRequestPartition(partition_index=0, committed_offset=0),)
        )
        await node.ask(OffsetCommitRequest(group_id=evil, topics=(asked,)), 5)
        _, page = await get(node, "/metrics")
        assert "\nclarion_evil" not in page


async def test_many_partitions_are_scraped_while_the_broker_serves(tmp_path):
    async with running(tmp_path, **QUICK) as node:
        await node.topic(partitions=1000)
        scraping = asyncio.ensure_future(scrape(node))
        longest = 0.0
        loop = asyncio.get_running_loop()
        while not scraping.done():
            began = loop.time()
            await node.client.produce({T0: batch(b"v")}, acks=1)
            longest = max(longest, loop.time() - began)
        assert len([name for name in scraping.result() if name.startswith("clarion_log_end_offset")]) == 1000
        assert longest < 2


async def test_health_and_readiness(tmp_path):
    async with running(tmp_path, **QUICK) as node:
        await work(node)
        assert await get(node, "/healthz") == (200, "ok\n")
        assert await get(node, "/readyz") == (200, "ready\n")
        (shard, *_) = node.server.groups.shards
        shard._is_loaded = False
        status, body = await get(node, "/readyz")
        assert (status, str(shard.partition.tp) in body) == (503, True)
        shard._is_loaded = True
        node.partition().log.failed = OSError(5, "bad sector")
        status, body = await get(node, "/readyz")
        assert (status, "t-0" in body) == (503, True)
        assert (await get(node, "/healthz"))[0] == 200
        assert (await scrape(node))["clarion_partitions_offline"] == 1
        node.partition().log.failed = None


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET /nothing HTTP/1.1\r\n\r\n", 404),
        (b"GET /../../etc/passwd HTTP/1.1\r\n\r\n", 404),
        (b"GET /healthz?verbose=1 HTTP/1.0\r\n\r\n", 200),
        (b"POST /metrics HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", 405),
        (b"GET\r\n\r\n", 400),
        (b"GET /healthz\r\n\r\n", 400),
        (b"\xff\xfe\xfd \x00 \x00\r\n\r\n", 400),
    ],
)
async def test_senseless_requests_get_a_clear_answer(tmp_path, request_bytes, status):
    async with running(tmp_path, **QUICK) as node:
        assert parsed(await say(node, request_bytes))[0] == status
        assert (await get(node, "/healthz"))[0] == 200


async def test_a_head_that_never_ends_is_cut_off(tmp_path):
    async with running(tmp_path, **QUICK) as node:
        with contextlib.suppress(ConnectionError):
            assert await say(node, b"GET /healthz HTTP/1.1\r\n" + b"X: " + b"y" * 100_000) == b""
        assert (await get(node, "/healthz"))[0] == 200


async def test_a_silent_client_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(http, "_HEAD_SECONDS_MAX", 0.1)
    async with running(tmp_path, **QUICK) as node:
        reader, writer = await asyncio.open_connection(*node.server.metrics_address)
        assert await asyncio.wait_for(reader.read(), 60) == b""
        writer.close()


async def test_too_many_silent_clients_are_refused_until_they_go(tmp_path, monkeypatch):
    monkeypatch.setattr(http, "_HEAD_SECONDS_MAX", 600)
    monkeypatch.setattr(http, "_CONNECTIONS_MAX", 3)
    async with running(tmp_path, **QUICK) as node:
        silent = [await asyncio.open_connection(*node.server.metrics_address) for _ in range(3)]
        with contextlib.suppress(ConnectionError):
            assert await say(node, b"GET /healthz HTTP/1.1\r\n\r\n") == b""
        for _, writer in silent:
            writer.close()

        async def is_served() -> bool:
            with contextlib.suppress(ConnectionError):
                return (await say(node, b"GET /healthz HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 200")
            return False

        async with asyncio.timeout(60):
            while not await is_served():
                await asyncio.sleep(0.001)


async def test_a_stop_ends_silent_clients_without_a_word(tmp_path, caplog):
    async with running(tmp_path, **QUICK) as node:
        silent = [await asyncio.open_connection(*node.server.metrics_address) for _ in range(3)]
        await asyncio.sleep(0.01)
    for reader, writer in silent:
        with contextlib.suppress(ConnectionError):
            assert await asyncio.wait_for(reader.read(), 60) == b""
        writer.close()
    assert not [one for one in caplog.records if one.levelname == "ERROR"]


async def test_without_a_port_there_is_no_endpoint(tmp_path):
    async with running(tmp_path, listeners=(ListenerConfig(port=0),)) as node:
        assert node.server.metrics_address is None


async def test_all_who_ask_within_a_second_share_one_page(tmp_path, monkeypatch):
    monkeypatch.setattr(metrics_page, "FRESH_SECONDS", 60.0)
    made = []
    monkeypatch.setattr(metrics_page, "write_page", lambda *given: made.append(1) or write_page(*given))
    async with running(tmp_path, **QUICK) as node:
        pages = await asyncio.gather(*(get(node, "/metrics") for _ in range(16)))
        assert len(set(pages)) == 1
        assert await get(node, "/metrics") == pages[0]
        assert len(made) == 1


async def test_a_scrape_over_many_partitions_is_read_in_pieces(tmp_path, monkeypatch):
    """Between any two pieces the loop comes round: counted, because clocks on a busy machine prove nothing."""
    async with running(tmp_path, **QUICK) as node:
        await node.topic(partitions=3000)
        turns = 0

        def turn() -> None:
            nonlocal turns
            turns += 1
            asyncio.get_running_loop().call_soon(turn)

        endpoint = metrics_page.MetricsPage(METRICS, lambda: iter([("clarion_topics", (), 1)] * 12_000))
        turn()
        before = turns
        samples, left_out = await endpoint._read()
        assert (len(samples), left_out) == (12_000, 0)
        assert turns - before >= 12_000 // metrics_page.SAMPLES_PER_TURN
        await endpoint.stop()
        found = await scrape(node)
        assert len([name for name in found if name.startswith("clarion_log_end_offset")]) == 3000


def test_a_page_is_bounded_whatever_the_names_are():
    long = [("clarion_group_members", (f"{number:06d}" + "x" * 8000,), 1) for number in range(10_000)]
    page = write_page(METRICS, long, 0)
    assert len(page) < 10_000 * (LABEL_CHARS_MAX + 100)
    names = {line.split(b"}")[0] for line in page.splitlines() if line.startswith(b"clarion_group_members{")}
    assert len(names) == 10_000, "they are still told apart"


def test_what_has_no_room_is_left_out_and_counted(monkeypatch):
    monkeypatch.setattr(metrics_page, "PAGE_BYTES_MAX", 10_000)
    page = write_page(METRICS, [("clarion_group_members", (f"group {number}",), 1) for number in range(1000)], 5)
    lines = [line for line in page.decode().splitlines() if line.startswith("clarion_group_members{")]
    left_out = next(line for line in page.decode().splitlines() if line.startswith(LEFT_OUT + " "))
    assert int(left_out.split()[1]) == 5 + 1000 - len(lines)
    assert 100 < len(lines) < 1000
    assert PAGE_BYTES_MAX > 10_000


async def test_series_beyond_the_limit_are_not_even_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(metrics_page, "SERIES_MAX", 100)
    async with running(tmp_path, **QUICK) as node:
        await node.topic(partitions=200)
        found = await scrape(node)
        assert found[LEFT_OUT] > 700
        assert len([name for name in found if name.startswith("clarion_")]) <= 101


async def test_a_crowd_of_slow_scrapers_does_not_keep_a_probe_from_its_answer(tmp_path, monkeypatch):
    """A hundred ask for the numbers and do not read them, a hundred more do not even ask."""
    monkeypatch.setattr(metrics_page, "write_page", lambda *given: bytes(20_000_000))  # more than a socket takes
    async with running(tmp_path, **QUICK) as node:
        crowd = []
        for number in range(200):
            sock = socket.socket()
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.setblocking(False)
            await asyncio.get_running_loop().sock_connect(sock, tuple(node.server.metrics_address))
            if number % 2:
                await asyncio.get_running_loop().sock_sendall(sock, b"GET /metrics HTTP/1.1\r\n\r\n")
            crowd.append(sock)
        for _ in range(3):
            assert await get(node, "/healthz") == (200, "ok\n")
            assert await get(node, "/readyz") == (200, "ready\n")
        assert (await get(node, "/metrics"))[0] == 503, "the sixteen places are taken"
        for sock in crowd:
            sock.close()


async def test_a_scraper_that_does_not_read_is_closed_and_its_place_is_free_again(tmp_path, monkeypatch):
    monkeypatch.setattr(http, "_SECONDS_MAX", 2)
    monkeypatch.setattr(http, "_LARGE_PAGES_MAX", 1)
    monkeypatch.setattr(metrics_page, "write_page", lambda *given: b"x" * 10_000_000)  # more than a socket takes
    async with running(tmp_path, **QUICK) as node:
        with socket.socket() as slow:
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            slow.setblocking(False)
            await asyncio.get_running_loop().sock_connect(slow, tuple(node.server.metrics_address))
            await asyncio.get_running_loop().sock_sendall(slow, b"GET /metrics HTTP/1.1\r\n\r\n")

            async def is_served() -> bool:
                return (await get(node, "/metrics"))[0] == 200

            async with asyncio.timeout(60):
                while await is_served():
                    await asyncio.sleep(0.001)
                while not await is_served():
                    await asyncio.sleep(0.02)


async def test_who_holds_data_is_told_with_how_much(tmp_path):
    async with running(tmp_path, **QUICK) as node:
        await work(node)
        await node.broker.configure_topic("t", lambda topic: {"clarion.retention.by": "subscriptions"})
        await node.server.housekeeping.retain()
        _, page = await get(node, "/metrics")
        (line,) = [line for line in page.splitlines() if line.startswith("clarion_retention_held_bytes{")]
        series, held = line.split(" ")
        assert series == 'clarion_retention_held_bytes{holder="g",partition="0",topic="t"}'
        assert float(held) == pytest.approx(node.partition().size_bytes * 6 / 10, rel=0.01), "it has read four of ten"
