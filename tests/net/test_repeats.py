"""What strangers can make the broker say a thousand times a second is said a few times, and then summed up."""

import asyncio
import logging

import pytest

from clarion.net.frames import LENGTH
from clarion.world.events import FIELDS, Repeats
from tests.net.serving import framed, serving


def test_some_lines_in_every_while_and_the_next_one_tells_what_was_left_out() -> None:
    repeats = Repeats(lines_max=3, seconds=10)
    assert [repeats.allow(second) for second in range(6)] == [True] * 3 + [False] * 3
    assert repeats.left_out == 3
    assert repeats.allow(10)
    assert repeats.take_left_out() == {"left_out": 3}
    assert repeats.take_left_out() == {}


async def test_a_thousand_refusals_write_few_lines_and_every_one_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "clarion.net")
    async with serving(lambda connection, frame: framed(b"ok")) as (server, port):
        for _ in range(200):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET / HTTP/1.1\r\n\r\n")
            assert await asyncio.wait_for(reader.read(), 60) == b""
            writer.close()
        assert server.malformed_total == 200
    lines = [getattr(one, FIELDS) for one in caplog.records if one.getMessage() == "connection_refused"]
    assert 1 <= len(lines) <= 40
    assert "HTTP" in lines[0]["reason"]


async def test_a_refusal_names_the_client_where_it_is_known(caplog: pytest.LogCaptureFixture) -> None:
    def service(connection, frame):
        connection.client_id = "a client"
        return framed(b"ok")

    async with serving(service) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(framed(b"hello") + LENGTH.pack(-1))
        assert await asyncio.wait_for(reader.read(), 60) == framed(b"ok")
        writer.close()
    (line,) = [getattr(one, FIELDS) for one in caplog.records if one.getMessage() == "connection_refused"]
    assert line["client_id"] == "a client"
