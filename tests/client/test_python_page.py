"""Every example in docs/python.md runs, one after the other, and the page names everything that there is."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from textwrap import dedent

import pytest

import clarion
from clarion.client.bus import Bus
from clarion.client.reading import MessageReading
from clarion.client.received import ReceivedMessage
from clarion.testing import embedded

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "python.md"
README_BLOCK = re.compile(r"^  ```python\n(.*?)^  ```$", re.DOTALL | re.MULTILINE)
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def test_the_example_of_the_first_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = [one for one in README_BLOCK.findall((ROOT / "README.md").read_text()) if "clarion.connect" in one]
    with embedded(metrics_port=0) as broker:
        code = dedent(example).replace("127.0.0.1:9092", broker.bootstrap)
        for waiting, at_once in ((", timeout=1", ""), ("message.ack()  #", "message.ack(); break  #")):
            assert waiting in code
            code = code.replace(waiting, at_once)
        exec(code, {})
    assert "b'two coffees'" in capsys.readouterr().out


def test_every_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    examples = BLOCK.findall(PAGE.read_text())
    assert len(examples) >= 6
    with embedded(metrics_port=0) as broker:
        names: dict[str, object] = {}
        for number, example in enumerate(examples, start=1):
            code = compile(
                example.replace("127.0.0.1:9092", broker.bootstrap).replace("timeout=1)", "timeout=0.2)"),
                f"example {number} of {PAGE.name}",
                "exec",
            )
            exec(code, names)
    assert "there is no topic 'ordres'; did you mean 'orders'?" in capsys.readouterr().out


@pytest.mark.parametrize("kind", [Bus, MessageReading, ReceivedMessage])
def test_every_method_is_on_the_page(kind: type) -> None:
    names = [name for name, _ in inspect.getmembers(kind) if not name.startswith("_")]
    page = PAGE.read_text()
    assert [name for name in names if not re.search(rf"\b{name}\b", page)] == []


def test_every_error_is_on_the_page() -> None:
    errors = [name for name in clarion.__all__ if inspect.isclass(getattr(clarion, name))]
    errors = [name for name in errors if issubclass(getattr(clarion, name), clarion.ClarionError)]
    assert len(errors) > 10
    page = PAGE.read_text()
    assert [name for name in errors if f"`{name}`" not in page and f"`clarion.{name}`" not in page] == []
