"""Who is told how pipelines do: a live table in a terminal, lines in a pipe, JSON lines for programs."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, TextIO

from clarion.pipeline.progress import Progress

_LINE_SECONDS = 10.0  # in a pipe a pipeline speaks at every change of state, and so often while rows flow
_STYLES = {
    "running": "green",
    "waiting": "yellow",
    "restarting": "yellow",
    "stopping": "yellow",
    "failed": "bold red",
    "ended": "bold green",
}
_HEADERS = (
    "PIPELINE",
    "STATE",
    "IN/s",
    "OUT/s",
    "ROWS IN",
    "ROWS OUT",
    "LAG",
    "BATCH",
    "WATERMARK",
    "STATE SIZE",
    "BAD",
)


class LiveView:
    """A Rich table that is drawn again with every look."""

    def __init__(self, headline: str) -> None:
        from rich.live import Live

        self._headline = headline
        self._started = time.monotonic()
        self._live = Live(refresh_per_second=8, transient=False)

    def __enter__(self) -> LiveView:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def __call__(self, progresses: Sequence[Progress]) -> None:
        self._live.update(self._drawn(progresses))

    def _drawn(self, progresses: Sequence[Progress]) -> Any:
        from rich.console import Group
        from rich.text import Text

        notes = [
            Text(f"{each.name}: {note}", _STYLES.get(each.state, "")) for each in progresses if (note := _note(each))
        ]
        elapsed = time.monotonic() - self._started
        headline = Text(f"{self._headline} · {elapsed:.0f} s · Ctrl-C stops", "dim")
        return Group(headline, pipeline_table(progresses, time.monotonic()), *notes)


def pipeline_table(progresses: Sequence[Progress], now: float) -> Any:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.ROUNDED, header_style="bold")
    for header in _HEADERS:
        table.add_column(
            header, justify="left" if header in ("PIPELINE", "STATE", "WATERMARK") else "right", no_wrap=True
        )
    for each in progresses:
        name, state, *rest = cells(each, now)
        table.add_row(Text(name, "cyan"), Text(state, _STYLES.get(state, "")), *rest)
    return table


class Lines:
    """One line per pipeline when its state changes, and now and then while rows flow."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stdout
        self._said: dict[str, tuple[str, str]] = {}
        self._rows: dict[str, int] = {}
        self._due = 0.0

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def __call__(self, progresses: Sequence[Progress]) -> None:
        now = time.monotonic()
        for each in progresses:
            has_changed = self._said.get(each.name) != (each.state, each.detail)
            has_moved = now >= self._due and self._rows.get(each.name) != each.rows_in
            if has_changed or has_moved:
                print(line(each, now), file=self._out, flush=True)
                self._said[each.name], self._rows[each.name] = (each.state, each.detail), each.rows_in
        if now >= self._due:
            self._due = now + _LINE_SECONDS


class JsonLines:
    """One JSON object per report, per change of state."""

    def __init__(self, out: TextIO | None = None, clock: Callable[[], datetime] | None = None) -> None:
        self._out = out or sys.stdout
        self._clock = clock or (lambda: datetime.now(UTC))
        self._said: dict[str, tuple[Any, ...]] = {}

    def __enter__(self) -> JsonLines:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def __call__(self, progresses: Sequence[Progress]) -> None:
        for each in progresses:
            said = (each.state, each.detail, each.last, each.rows_in, each.rows_out)
            if self._said.get(each.name) != said:
                self._said[each.name] = said
                moment = self._clock().isoformat(timespec="milliseconds").replace("+00:00", "Z")
                print(json.dumps({"at": moment, **each.as_json(time.monotonic())}), file=self._out, flush=True)


def cells(one: Progress, now: float) -> list[str]:
    rate_in, rate_out = one.rates(now)
    last = one.last
    return [
        one.name,
        one.state,
        f"{rate_in:,.0f}",
        f"{rate_out:,.0f}",
        f"{one.rows_in:,}",
        f"{one.rows_out:,}",
        "-" if one.lag is None else f"{one.lag:,}",
        "-" if last is None else f"{last.batch_id} in {_time(last.batch_ms)}",
        "-" if last is None or last.watermark is None else last.watermark.replace("T", " ").removesuffix(".000Z"),
        "-" if last is None or not last.state_rows else f"{last.state_rows:,} rows, {_size(last.state_bytes)}",
        f"{one.rows_bad:,}",
    ]


def line(one: Progress, now: float) -> str:
    """`errors_per_minute: running, 1,000 in (100/s), 12 out (1/s), lag 0, batch 7 in 120 ms`"""
    if one.rows_in == 0 and one.rows_out == 0:
        return f"{one.name}: {one.state}" + (f": {one.detail}" if one.detail else "")
    _, state, rate_in, rate_out, rows_in, rows_out, lag, batch, watermark, size, bad = cells(one, now)
    parts = [
        f"{one.name}: {state}",
        f"{rows_in} in ({rate_in}/s)",
        f"{rows_out} out ({rate_out}/s)",
        *([] if lag == "-" else [f"lag {lag}"]),
        *([] if batch == "-" else [f"batch {batch}"]),
        *([] if watermark == "-" else [f"watermark {watermark}"]),
        *([] if size == "-" else [f"state {size}"]),
        *([] if bad == "0" else [f"{bad} bad"]),
    ]
    return ", ".join(parts) + (f": {one.detail}" if one.detail else "")


def _note(one: Progress) -> str:
    return one.detail or one.last_error


def _time(milliseconds: int) -> str:
    return f"{milliseconds} ms" if milliseconds < 10_000 else f"{milliseconds / 1000:.1f} s"


def _size(count: float) -> str:
    for unit in ("B", "KB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
