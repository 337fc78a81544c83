"""What strangers can make the broker say a thousand times a second is said a few times, and then summed up."""

import asyncio
import io
import json
import logging
from uuid import UUID

import pytest

from clarion.net.frames import LENGTH
from clarion.world import event_log
from clarion.world.events import FIELDS, FloodFilter, JsonFormatter, Repeats, TextFormatter
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


class Written:
    """What a handler with these manners has written."""

    def __init__(self, formatter: logging.Formatter, flood: FloodFilter) -> None:
        self._text = io.StringIO()
        handler = logging.StreamHandler(self._text)
        handler.setFormatter(formatter)
        handler.addFilter(flood)
        self.logger = logging.getLogger("clarion.flooded")
        self.logger.propagate = False
        self.logger.handlers = [handler]
        self.log = event_log("flooded")

    def lines(self) -> list[str]:
        return self._text.getvalue().splitlines()


def test_a_flood_of_one_warning_leaves_the_others_their_lines() -> None:
    written = Written(JsonFormatter(), FloodFilter(lines_max=3, seconds=3600))
    written.logger.setLevel(logging.INFO)
    for number in range(10):
        written.log.warning("read_failed", number=number)
        written.log.info("topic_created", number=number)
    written.log.error("log_failed")
    events = [json.loads(line)["event"] for line in written.lines()]
    assert events.count("read_failed") == 3
    assert events.count("topic_created") == 10, "what went well is not held back"
    assert events[-1] == "log_failed"


def test_the_first_line_after_a_flood_tells_how_many_were_left_out() -> None:
    written = Written(JsonFormatter(), FloodFilter(lines_max=1, seconds=0.0))
    flood = FloodFilter(lines_max=1, seconds=10)
    for second in (0.0, 1.0, 2.0, 11.0):
        record = logging.LogRecord("clarion.net", logging.WARNING, "", 0, "read_failed", (), None)
        record.created, record.clarion_fields = second, {}
        if flood.filter(record):
            written.logger.handle(record)
    assert [json.loads(line).get("left_out") for line in written.lines()] == [None, 2]


@pytest.mark.parametrize("formatter", [TextFormatter(), JsonFormatter()])
def test_ids_are_spelt_as_kafkas_tools_spell_them(formatter: logging.Formatter) -> None:
    written = Written(formatter, FloodFilter())
    written.log.error("topic_created", id=UUID("8ab9f5cd-0f0a-4f9c-8d5e-16a4f1d4a7b2"))
    (line,) = written.lines()
    assert "irn1zQ8KT5yNXhak8dSnsg" in line
    assert "8ab9f5cd" not in line
