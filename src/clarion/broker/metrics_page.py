"""One page of numbers for all who ask within a second, read in short pieces and written in a thread of its own.

The page is bounded whatever clients have called their topics and groups: so many series, so many bytes, labels of so
many characters. What does not fit is left out, and the page says how much.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple
from zlib import crc32

from clarion.model.histogram import BOUNDS_SECONDS, Histogram

Sample = tuple[str, tuple[str, ...], float | Histogram]

FRESH_SECONDS: Final = 1.0  # scrapers come every few seconds; several of them, or a hundred, share one page
SERIES_MAX: Final = 250_000  # 20,000 partitions, and groups that read them all; Prometheus's own advice is far less
PAGE_BYTES_MAX: Final = 32 * 1024 * 1024
LABEL_CHARS_MAX: Final = 255  # as long as topics' names, and groups' ids, may be
SAMPLES_PER_TURN: Final = 500  # about a millisecond
_HISTOGRAM_SERIES: Final = len(BOUNDS_SECONDS) + 3  # the last bucket, the sum and the count
LEFT_OUT: Final = "clarion_metrics_left_out_series"


class Metric(NamedTuple):
    name: str
    kind: str  # counter, gauge or histogram
    help: str
    labels: tuple[str, ...] = ()


class MetricsPage:
    def __init__(self, metrics: Mapping[str, Metric], samples: Callable[[], Iterator[Sample]]) -> None:
        self._metrics = metrics
        self._samples = samples
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="metrics")
        self._page = b""
        self._made_at = float("-inf")
        self._making: asyncio.Task[bytes] | None = None

    async def get(self) -> bytes:
        """At most a second old; whoever asks while it is being made gets that one."""
        if self._making is None:
            if self._loop.time() - self._made_at < FRESH_SECONDS:
                return self._page
            self._making = self._loop.create_task(self._make())  # who asked hears of its errors
        return await asyncio.shield(self._making)

    async def stop(self) -> None:
        if self._making is not None:
            self._making.cancel()
            await asyncio.gather(self._making, return_exceptions=True)
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _make(self) -> bytes:
        try:
            samples, left_out = await self._read()
            self._page = await self._loop.run_in_executor(self._thread, write_page, self._metrics, samples, left_out)
            self._made_at = self._loop.time()
            return self._page
        finally:
            self._making = None

    async def _read(self) -> tuple[list[Sample], int]:
        samples: list[Sample] = []
        kept = left_out = 0
        for number, sample in enumerate(self._samples(), 1):
            series = _HISTOGRAM_SERIES if isinstance(sample[2], Histogram) else 1
            if kept + series <= SERIES_MAX:
                samples.append(sample)
                kept += series
            else:
                left_out += series
            if number % SAMPLES_PER_TURN == 0:
                await asyncio.sleep(0)
        return samples, left_out


def write_page(metrics: Mapping[str, Metric], samples: list[Sample], left_out: int) -> bytes:
    """Prometheus's text format, and the numbers of the process behind it."""
    families: dict[str, list[str]] = {name: [] for name in metrics}
    written: dict[tuple[str, ...], str] = {}  # most labels come several times
    room = PAGE_BYTES_MAX
    for name, labels, value in samples:
        shown = written.get(labels)
        if shown is None:
            shown = written[labels] = _labels(metrics[name].labels, labels)
        line = _histogram(name, shown, value) if isinstance(value, Histogram) else f"{name}{shown} {value}\n"
        room -= len(line)
        if room < 0:
            left_out += 1
        else:
            families[name].append(line)
    families[LEFT_OUT].append(f"{LEFT_OUT} {left_out}\n")
    parts: list[str] = []
    for name, lines in families.items():
        if lines:
            parts.append(f"# HELP {name} {metrics[name].help}\n# TYPE {name} {metrics[name].kind}\n")
            parts += lines
    return "".join(parts).encode() + _process_page()


def _histogram(name: str, labels: str, histogram: Histogram) -> str:
    """As Prometheus wants it: each line counts what took at most so long, also what those before it have counted."""
    before = f"{labels[:-1]}," if labels else "{"
    lines, total = [], 0
    for bound, count in zip((*BOUNDS_SECONDS, "+Inf"), histogram.counts, strict=True):
        total += count
        lines.append(f'{name}_bucket{before}le="{bound}"}} {total}\n')
    lines += [f"{name}_sum{labels} {histogram.seconds_total}\n", f"{name}_count{labels} {total}\n"]
    return "".join(lines)


def _labels(names: tuple[str, ...], values: tuple[str, ...]) -> str:
    pairs = sorted(zip(names, values, strict=True))
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in pairs) + "}" if pairs else ""


def _escaped(value: str) -> str:
    if len(value) > LABEL_CHARS_MAX:
        value = f"{value[: LABEL_CHARS_MAX - 9]}~{crc32(value.encode(errors='replace')):08x}"  # still told apart
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _process_page() -> bytes:
    from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest

    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    page: bytes = generate_latest(registry)
    return page
