"""What the demo looks like: a live picture in a terminal, one line a second elsewhere, and the summary at the end."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Iterable, Sequence
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any

from clarion.cli.demo.clients import PARTITIONS, TOPIC, OrderReader, Publisher
from clarion.cli.demo.ledger import ReaderVerdict
from clarion.cli.table import Column, show_rows
from clarion.cli.units import count_text, duration_text

if TYPE_CHECKING:
    from rich.console import RenderableType

    from clarion.cli.demo.spark import SparkPart

_BLOCKS = "▁▂▃▄▅▆▇█"
_HISTORY = 48  # columns of the sparkline, one per picture
_PICTURE_SECONDS = 0.5  # ten pictures a second took 6 % more of a core, which Spark needs for its start
_NEWS = 5

_TALL = 46  # lines of a terminal that has room for everything


class Screen:
    """Draws what it is given; keeps only the history of the rate and the latest news."""

    def __init__(
        self,
        publisher: Publisher,
        readers: Sequence[OrderReader],
        where: str,
        seconds: float | None,
        spark: SparkPart | None = None,
    ) -> None:
        self._spark = spark
        self._publisher = publisher
        self._readers = readers
        self._where = where
        self._seconds = seconds
        self._rates: deque[float] = deque(maxlen=_HISTORY)
        self._news: deque[str] = deque(maxlen=_NEWS)
        self._unsaid: deque[str] = deque()
        self._next_line_at = 1.0
        self._next_picture_at, self._drawn_phase = 0.0, ""
        self._live: Any = None

    def __enter__(self) -> Screen:
        if sys.stdout.isatty():
            from rich.live import Live

            self._live = Live(auto_refresh=False, redirect_stderr=False)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def say(self, elapsed: float, news: str) -> None:
        line = f"{elapsed:5.1f}s  {news}"
        self._news.append(line)
        self._unsaid.append(line)

    def read_aloud(self, line: str) -> None:
        """What a reader prints; in a terminal it has a panel of its own."""
        if self._live is None:
            self._unsaid.append(line)

    def show(self, elapsed: float, phase: str) -> None:
        if self._live is not None:
            self._draw(elapsed, phase)
            return
        while self._unsaid:
            print(self._unsaid.popleft(), flush=True)
        if elapsed >= self._next_line_at:
            self._next_line_at = int(elapsed) + 1.0
            print(self.line(elapsed), flush=True)

    def _draw(self, elapsed: float, phase: str) -> None:
        if elapsed < self._next_picture_at and phase == self._drawn_phase:
            return
        self._next_picture_at, self._drawn_phase = elapsed + _PICTURE_SECONDS, phase
        self._rates.append(self._publisher.meter.rate(time.monotonic()))
        self._live.update(self.picture(elapsed, phase), refresh=True)

    def line(self, elapsed: float) -> str:
        published = self._publisher.acknowledged.distinct
        words = [f"{elapsed:5.1f}s  published {published:,} ({self._publisher.meter.rate(time.monotonic()):,.0f}/s)"]
        words += [f"{each.role.name} {each.received:,}" for each in self._readers if each.is_running]
        words += [f"{name} {each['rows_in']:,} rows" for name, each in self._reports()]
        return " | ".join(words)

    def picture(self, elapsed: float, phase: str) -> RenderableType:
        from rich.console import Group
        from rich.panel import Panel
        from rich.text import Text

        news = Text("\n".join(self._news) or "…", style="dim", no_wrap=True, overflow="ellipsis")
        panel = Panel(news, title="what happened", title_align="left", border_style="dim", height=_NEWS + 2)
        has_room = self._spark is None or get_terminal_size().lines >= _TALL
        hint = "Ctrl-C drains, counts and ends" if self._seconds is None else "ends by itself, then counts"
        return Group(
            Panel(self._head(elapsed, phase), title="[bold]Clarion[/] one log, many readers", border_style="cyan"),
            self._table(),
            *self._pipelines(),
            *([panel] if has_room else []),
            Text(f" {hint}", style="dim"),
        )

    def _reports(self) -> list[tuple[str, dict[str, Any]]]:
        return sorted(self._spark.reports.items()) if self._spark is not None else []

    def _pipelines(self) -> list[RenderableType]:
        """The pipelines on Spark, and the last lines of the reader of what they write."""
        from rich import box
        from rich.panel import Panel
        from rich.table import Table
        from rich.text import Text

        if self._spark is None:
            return []
        table = Table(box=box.SIMPLE_HEAD, expand=True, header_style="bold", pad_edge=False)
        table.add_column("pipeline on Spark", no_wrap=True, style="bold cyan")
        table.add_column("state", no_wrap=True)
        for header in ("rows in", "per s", "rows out", "lag", "last batch", "state rows", "watermark"):
            table.add_column(header, justify="right", no_wrap=True)
        for name, each in self._reports():
            table.add_row(name, *_pipeline_cells(each))
        printed = Text("\n".join(self._spark.reader.printed) or "…", no_wrap=True, overflow="ellipsis")
        logs = count_text(self._spark.publisher.acknowledged.distinct)
        title = f"what the rollup of {logs} log lines says, window by window"
        return [table, Panel(printed, title=title, title_align="left", border_style="dim", height=7)]

    def _head(self, elapsed: float, phase: str) -> RenderableType:
        from rich.console import Group
        from rich.text import Text

        publisher = self._publisher
        of = f" of {self._seconds:g}s" if self._seconds is not None else ""
        first = Text.assemble(
            ("● ", "green" if phase == "live" else "yellow"), (phase, "bold"), f"  {elapsed:.0f}s{of}   ",
            (f"{TOPIC}, {PARTITIONS} partitions, {self._where}", "dim"),
        )  # fmt: skip
        second = Text.assemble(
            "published ", (count_text(publisher.acknowledged.distinct), "bold green"), " orders, acknowledged   ",
            (f"{publisher.meter.rate(time.monotonic()):,.0f}/s", "bold"),
            f"   ack p50 {_ms(publisher.meter.latency_ms(0.5))}", f"  p99 {_ms(publisher.meter.latency_ms(0.99))}",
        )  # fmt: skip
        lines = [first, second, Text(sparkline(self._rates) or " ", style="cyan", no_wrap=True)]
        if publisher.error:
            lines.append(Text(f"publisher: {publisher.error}", style="bold red"))
        return Group(*lines)

    def _table(self) -> RenderableType:
        from rich import box
        from rich.table import Table

        table = Table(box=box.SIMPLE_HEAD, expand=True, header_style="bold", pad_edge=False)
        table.add_column("reader", no_wrap=True)
        table.add_column("how it reads", no_wrap=True, style="dim")
        table.add_column("partitions", no_wrap=True)
        for header in ("received", "per s", "behind", "p50"):
            table.add_column(header, justify="right", no_wrap=True)
        table.add_column("last event", no_wrap=True, overflow="ellipsis", ratio=1)
        previous: str | None = None
        for reader in self._readers:
            if previous is not None and previous != reader.role.what:
                table.add_section()
            previous = reader.role.what
            table.add_row(*self._cells(reader))
        return table

    def _cells(self, reader: OrderReader) -> list[Any]:
        from rich.text import Text

        if not reader.is_running and not reader.received:
            waiting = reader.error or "waits for its turn"
            style = "red" if reader.error else "dim"
            return [Text(reader.role.name, "dim"), reader.role.what, "", "", "", "", "", Text(waiting, style)]
        behind = max(self._publisher.acknowledged.distinct - reader.tally.distinct, 0)
        return [
            Text(reader.role.name, "bold cyan"),
            reader.role.what,
            partition_boxes(reader.partitions),
            count_text(reader.received),
            f"{reader.meter.rate(time.monotonic()):,.0f}",
            Text(count_text(behind), "green" if behind < 1_000 else "yellow"),
            _ms(reader.meter.latency_ms()),
            Text(reader.error, "bold red") if reader.error else Text(reader.last),
        ]


def _pipeline_cells(report: dict[str, Any]) -> list[str]:
    watermark = report["watermark"]
    return [
        report["state"],
        count_text(report["rows_in"]),
        count_text(report["rows_in_per_second"]),
        count_text(report["rows_out"]),
        "-" if report["lag"] is None else count_text(report["lag"]),
        _ms(report["batch_ms"]),
        count_text(report["state_rows"]),
        "-" if watermark is None else watermark[11:19],
    ]


def sparkline(rates: Iterable[float]) -> str:
    shown = list(rates)
    top = max(shown, default=0.0)
    if top <= 0:
        return ""
    return "".join(_BLOCKS[min(int(rate / top * len(_BLOCKS)), len(_BLOCKS) - 1)] for rate in shown)


def partition_boxes(held: Sequence[int]) -> str:
    """One box per partition, filled where the reader holds it: who shares what is seen at a glance."""
    return "".join("■" if each in held else "·" for each in range(PARTITIONS))


def show_summary(verdicts: Sequence[ReaderVerdict], elapsed: float) -> None:
    rows = [
        {
            "reader": each.reader,
            "received": each.received,
            "missing": each.missing,
            "repeated": each.repeated,
            "order": _order(each),
            "verdict": "✓ all there" if each.is_good else "✗",
        }
        for each in verdicts
    ]
    columns = [
        Column("reader", "READER", style="cyan"),
        Column("received", "RECEIVED", count_text, right=True),
        Column("missing", "MISSING", count_text, right=True),
        Column("repeated", "REPEATED", count_text, right=True),
        Column("order", "ORDER PER KEY"),
        Column("verdict", "VERDICT", style="bold green" if all(each.is_good for each in verdicts) else "bold red"),
    ]
    show_rows(rows, columns, as_json=False, title=f"After {duration_text(elapsed * 1000)}")


def _order(one: ReaderVerdict) -> str:
    if one.may_repeat or one.order_breaks is None:
        return "-"
    return "kept" if one.order_breaks == 0 else f"{one.order_breaks} breaks"


def _ms(latency: float | None) -> str:
    if latency is None:
        return "-"
    return f"{latency:.1f} ms" if latency < 1000 else f"{latency / 1000:.1f} s"
