"""The receiver of docs/push.md, run as it is written: it takes what the broker sends, and nothing else."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clarion.consumers.addresses import read_networks
from clarion.consumers.cloud_events import Webhook
from clarion.consumers.push import PushOutcome
from clarion.gateway.webhooks import NameLookups, WebhookClient
from clarion.model.push_endpoint import PushEndpoint
from clarion.world import SystemClock
from tests.broker.harness import until
from tests.gateway.push_words import pushing, subscribe, write

PAGE = Path(__file__).parents[2] / "docs" / "push.md"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
START = 'ThreadingHTTPServer(("127.0.0.1", 8080), Receiver).serve_forever()'


class Example:
    def __init__(self) -> None:
        (code,) = BLOCK.findall(PAGE.read_text())
        assert START in code
        self.printed: list[tuple[Any, ...]] = []
        self.names: dict[str, Any] = {"print": lambda *words: self.printed.append(words)}
        exec(code.replace(START, ""), self.names)  # our own page
        self.names["Receiver"].log_message = lambda *words: None
        self.server = self.names["ThreadingHTTPServer"](("127.0.0.1", 0), self.names["Receiver"])
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def push(self, **more: Any) -> PushEndpoint:
        url = f"http://127.0.0.1:{self.server.server_port}/"
        return PushEndpoint(url=url, **{"secret": self.names["SECRET"], "allow_private": True, **more})


@pytest.fixture
def example() -> Iterator[Example]:
    found = Example()
    yield found
    found.server.shutdown()
    found.server.server_close()


async def test_the_receiver_of_the_guide_takes_every_form(tmp_path: Path, example: Example) -> None:
    async with pushing(tmp_path) as node:
        await subscribe(node, example.push())
        await write(node, b'{"order": 1}', b"\xff\x00", key=b"42")
        await until(lambda: node.broker.endpoints.of("hook").delivered_total == 2)
        assert sorted(example.printed, key=str) == [("t", "0", "42", {"order": 1}), ("t", "1", "42", b"\xff\x00")]
        await subscribe(node, example.push(batch_max=5), name="batches")
        await until(lambda: node.broker.endpoints.of("batches").delivered_total == 2)
        assert len(example.printed) == len(example.names["done"]) == 4


@pytest.mark.parametrize("age_ms", [0, 600_000])
async def test_the_receiver_of_the_guide_takes_nothing_from_strangers(example: Example, age_ms: int) -> None:
    secret = example.names["SECRET"] if age_ms else "whsec_" + "A" * 32
    client = WebhookClient(example.push(secret=secret), NameLookups(), read_networks(["127.0.0.0/8"]))
    answer = await client.send(Webhook("msg_1", {"content-type": "text/plain"}, b"x"), SystemClock().now_ms() - age_ms)
    await client.close()
    assert answer.outcome is PushOutcome.FAILED
    assert answer.reason.startswith("HTTP 401")
    assert example.printed == []
