"""Draws docs/images of commands from what they really print: `python -m tools.pictures`, or `make pictures`."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import struct
import subprocess
import sys
import termios
from codecs import getincrementaldecoder
from contextlib import suppress
from pathlib import Path
from typing import Final

from confluent_kafka import Consumer, Producer
from rich.console import Console
from rich.text import Text

from clarion.testing import embedded

IMAGES: Final = Path(__file__).resolve().parent.parent / "docs" / "images"
COLUMNS: Final = 80
DEMO_COLUMNS, _DEMO_LINES = 112, 50
_WINDOWS: Final = 5  # so many lines of the rollup fill its pane
_FRAME: Final = re.compile(r"\r\x1b\[2K(?:\x1b\[1A\x1b\[2K)+")  # how the live picture is taken back
_TOPICS: Final = {"orders": 6, "payments": 3, "shipments": 3, "clicks": 12, "audit": 1}


def main() -> None:
    draw("help", "clarion --help", clarion("--help"))
    draw("help-consume", "clarion consume --help", clarion("consume", "--help"))
    draw("top", "clarion top", top())
    draw("demo", "make demo", demo(), DEMO_COLUMNS)


def clarion(*words: str) -> str:
    environment = {**os.environ, "COLUMNS": str(COLUMNS), "PYTHONUNBUFFERED": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "clarion", *words], capture_output=True, text=True, env=environment, check=True
    )
    return done.stdout


def top() -> str:
    """One look at a broker with something to do: messages come, and two groups of three keep up."""
    with embedded(topics=_TOPICS, durability="fsync", metrics_port=0) as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 5})
        for number in range(60_000):
            producer.produce([*_TOPICS][number % len(_TOPICS)], b"x" * (100 + number % 400))
            producer.poll(0)
        producer.flush()
        members = [_member(broker.bootstrap, group) for group in ("billing", "billing", "warehouse")]
        while not all(member.assignment() for member in members):
            for member in members:
                member.consume(10, timeout=0.05)
        words = ["--bootstrap", broker.bootstrap, "top", "--count", "1"]
        environment = {**os.environ, "COLUMNS": str(COLUMNS)}
        looking = subprocess.Popen(
            [sys.executable, "-m", "clarion", *words], stdout=subprocess.PIPE, text=True, env=environment
        )
        while looking.poll() is None:
            for topic, partitions in _TOPICS.items():
                for _ in range(5 * partitions * partitions):
                    producer.produce(topic, b"x" * 300)
            producer.flush()
            for member in members:
                if member.consume(2_000, timeout=0.05):
                    member.commit(asynchronous=True)
        assert looking.stdout is not None
        shown = looking.stdout.read()
        for member in members:
            member.close()
        return shown.replace(broker.bootstrap, "127.0.0.1:9092")


def demo() -> str:
    """A picture of the demo while it is live and Spark's panes are full, in a terminal of its own."""
    screen, terminal = os.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", _DEMO_LINES, DEMO_COLUMNS, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor"}
    words = [sys.executable, "-m", "clarion", "demo"]
    playing = subprocess.Popen(words, stdin=terminal, stdout=terminal, stderr=subprocess.DEVNULL, env=environment)
    os.close(terminal)
    shown, found, letters = "", "", getincrementaldecoder("utf-8")(errors="replace")
    with suppress(OSError):  # what a terminal says when the last one has left it
        while data := os.read(screen, 65536):
            *frames, shown = _FRAME.split(shown + letters.decode(data))
            frames = [each.replace("\r", "") for each in frames]
            if not found and (found := next(filter(_is_full, frames), "")):
                playing.send_signal(signal.SIGINT)
    os.close(screen)
    if playing.wait() or not found:
        raise SystemExit("the demo failed")
    return found


def _is_full(frame: str) -> bool:
    """Whether everybody has something to show: both pipelines have written, and what the rollup wrote has been read."""
    text = Text.from_ansi(frame).plain
    number, written = r"[\d,]+", r"[1-9][\d,]*"
    lines = re.findall(rf"^\s*(?:archive|rollup)\s+running\s+{number}\s+{number}\s+{written}\s", text, re.MULTILINE)
    return "● live" in text and len(lines) == 2 and text.count(" requests ") >= _WINDOWS


def _member(bootstrap: str, group: str) -> Consumer:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest"})
    consumer.subscribe(["orders", "payments"])
    return consumer


def draw(name: str, title: str, shown: str, columns: int = COLUMNS) -> None:
    console = Console(record=True, width=columns, file=open(os.devnull, "w"), force_terminal=True)  # noqa: SIM115
    console.print(Text.from_ansi(shown.rstrip()))
    path = IMAGES / f"{name}.svg"
    console.save_svg(str(path), title=title, code_format=_without_web_fonts())
    print(f"drew {path.name}")


def _without_web_fonts() -> str:
    """Rich's own picture fetches its font from elsewhere."""
    from rich._export_format import CONSOLE_SVG_FORMAT

    head, _, rest = CONSOLE_SVG_FORMAT.partition("    @font-face")
    return head + rest[rest.index("    .{unique_id}-matrix") :]


if __name__ == "__main__":
    main()
