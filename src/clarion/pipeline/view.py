"""Who is told how pipelines do: cards in a terminal, lines in a pipe, JSON lines for programs."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TextIO

from clarion.pipeline.progress import PipelineProgress

Report = Mapping[str, Any]

_LINE_SECONDS = 10.0  # in a pipe a pipeline speaks at every change of state, and so often while rows flow
_STYLES = {
    "running": "green",
    "waiting": "yellow",
    "restarting": "yellow",
    "stopping": "yellow",
    "failed": "bold red",
    "ended": "bold green",
}
WIDTH_MAX = 100  # a card is read, not scanned: wider lines are harder to find one's way in


class LiveView:
    """One card per pipeline, drawn again with every look; made for 80 columns."""

    def __init__(self, headline: str) -> None:
        from rich.live import Live

        self._headline = headline
        self._started = time.monotonic()
        self._has_shown = False
        self._live = Live(refresh_per_second=8, transient=False)

    def __enter__(self) -> LiveView:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def __call__(self, progresses: Sequence[PipelineProgress]) -> None:
        self._has_shown = self._has_shown or not _end_in_failure(progresses)
        if self._has_shown:
            self._live.update(self._drawn(progresses))

    def _drawn(self, progresses: Sequence[PipelineProgress]) -> Any:
        from rich.console import Group
        from rich.text import Text

        now = time.monotonic()
        headline = Text(f"{self._headline} · {now - self._started:.0f} s · Ctrl-C stops", "dim")
        return Group(headline, *(card(each.as_json(now)) for each in progresses))


def card(report: Report) -> Any:
    """What `run --json` says of a pipeline, for people; `status` shows it too."""
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for label, text in facts(report):
        table.add_row(label, Text(text, "red" if label == "error" else ""))
    style = _STYLES.get(report["state"], "dim")
    title = Text.assemble((report["pipeline"], "bold cyan"), " · ", (report["state"], style))
    return Panel(table, title=title, title_align="left", border_style=style, width=min(_columns(), WIDTH_MAX))


def _columns() -> int:
    return shutil.get_terminal_size((80, 24)).columns


def facts(report: Report) -> list[tuple[str, str]]:
    """The lines of a card, each under a short word; what there is nothing to say of is left out. Pure."""
    lines = [
        ("rows", _joined(_rows(report, "in"), _rows(report, "out"), _dropped(report))),
        ("lag", lag_text(report)),
        ("batch", _batch(report)),
        *(("table", _table(each)) for each in report.get("tables") or ()),
        ("seen", _seen(report)),
        ("note", report["detail"] if report["state"] != "failed" else ""),
        ("error", report["last_error"] if report["last_error"] not in report["detail"] or _is_failed(report) else ""),
    ]
    return [(label, text) for label, text in lines if text]


def _seen(report: Report) -> str:
    """Only of a report that lay in a file: when it was written, and by whom if he is still there."""
    if report.get("updated_ms") is None:
        return ""
    process = f"process {report['pid']}" if report.get("pid") else "not running"
    return _joined(_moment(report["updated_ms"]), process)


def _is_failed(report: Report) -> bool:
    return bool(report["state"] == "failed")


def _rows(report: Report, way: str) -> str:
    return f"{report[f'rows_{way}'] or 0:,} {way} ({report[f'rows_{way}_per_second'] or 0:,.0f}/s)"


def _dropped(report: Report) -> str:
    bad, late = report["quarantined"] or 0, report["late"] or 0
    return _joined(f"{bad:,} bad" if bad else "", f"{late:,} late" if late else "")


def lag_text(report: Report) -> str:
    """`1,200 messages, 1.2 MB, 3.4 s; most in logs-2 (800)`"""
    if report["lag"] is None:
        return "not known"
    if not report["lag"]:
        return "none"
    size, seconds = report.get("lag_bytes"), report.get("lag_seconds")
    whole = ", ".join(
        [
            f"{report['lag']:,} messages",
            *([] if size is None else [_size(size)]),
            *([] if seconds is None else [_duration(seconds)]),
        ]
    )
    partitions = report.get("partitions") or []
    if len(partitions) < 2:
        return whole
    most = max(partitions, key=lambda each: int(each["messages"]))
    return f"{whole}; most in {most['topic']}-{most['partition']} ({most['messages']:,})"


def _batch(report: Report) -> str:
    if report["batch"] is None:
        return ""
    watermark, rows = report["watermark"], report["state_rows"]
    return _joined(
        f"{report['batch']} in {_time(report['batch_ms'])}",
        f"watermark {watermark.replace('T', ' ').removesuffix('.000Z')}" if watermark else "",
        f"state {rows:,} rows, {_size(report['state_bytes'])}" if rows else "",
    )


def _table(table: Report) -> str:
    """A table is as far behind as its pipeline; what it has not got it says by when it was written last."""
    behind, written = table["behind_seconds"], table["written_ms"]
    return _joined(
        table["table"],
        "" if behind is None else "up to date" if not behind else f"{_duration(behind)} behind",
        "" if written is None else f"written {_moment(written)}",
    )


def _moment(milliseconds: int) -> str:
    return f"{datetime.fromtimestamp(milliseconds / 1000, UTC):%Y-%m-%d %H:%M:%S}Z"


def _joined(*parts: str) -> str:
    return " · ".join(filter(None, parts))


class Lines:
    """One line per pipeline when its state changes, and now and then while rows flow."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stdout
        self._said: dict[str, tuple[str, str]] = {}
        self._rows: dict[str, int] = {}
        self._due = 0.0

    def __call__(self, progresses: Sequence[PipelineProgress]) -> None:
        now = time.monotonic()
        for each in progresses:
            has_changed = self._said.get(each.name) != (each.state, each.detail)
            has_moved = now >= self._due and self._rows.get(each.name) != each.rows_in
            is_told_anyway = each.state == "failed" and _end_in_failure(progresses)
            if (has_changed or has_moved) and not is_told_anyway:
                print(line(each.as_json(now)), file=self._out, flush=True)
                self._said[each.name], self._rows[each.name] = (each.state, each.detail), each.rows_in
        if now >= self._due:
            self._due = now + _LINE_SECONDS


def _end_in_failure(progresses: Sequence[PipelineProgress]) -> bool:
    """Whether the command ends now, and says itself what failed: people need not read it twice."""
    states = [each.state for each in progresses]
    return "failed" in states and all(each in ("failed", "stopped", "ended") for each in states)


class JsonLines:
    """One JSON object per report, per change of state."""

    def __init__(self, out: TextIO | None = None, clock: Callable[[], datetime] | None = None) -> None:
        self._out = out or sys.stdout
        self._clock = clock or (lambda: datetime.now(UTC))
        self._said: dict[str, tuple[Any, ...]] = {}

    def __call__(self, progresses: Sequence[PipelineProgress]) -> None:
        for each in progresses:
            said = (each.state, each.detail, each.last, each.rows_in, each.rows_out)
            if self._said.get(each.name) != said:
                self._said[each.name] = said
                moment = self._clock().isoformat(timespec="milliseconds").replace("+00:00", "Z")
                print(json.dumps({"at": moment, **each.as_json(time.monotonic())}), file=self._out, flush=True)


def line(report: Report) -> str:
    """`errors_per_minute: running, 1,000 in (100/s), 12 out (1/s), lag 0, batch 7 in 120 ms`"""
    begin = f"{report['pipeline']}: {report['state']}"
    end = f": {report['detail']}" if report["detail"] else ""
    if not report["rows_in"] and not report["rows_out"]:
        return begin + end
    parts = [
        begin,
        _rows(report, "in"),
        _rows(report, "out"),
        "" if report["lag"] is None else f"lag {lag_text(report)}",
        f"batch {_batch(report)}" if report["batch"] is not None else "",
        _dropped(report),
    ]
    return ", ".join(filter(None, parts)).replace(" · ", ", ") + end


def _time(milliseconds: int) -> str:
    return f"{milliseconds} ms" if milliseconds < 10_000 else f"{milliseconds / 1000:.1f} s"


def _duration(seconds: float) -> str:
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.1f} s"


def _size(count: float) -> str:
    for unit in ("B", "KB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
