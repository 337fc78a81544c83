"""Writes docs/metrics.md from the metrics that the broker has: `python -m tools.metrics_table`."""

from __future__ import annotations

from pathlib import Path

from clarion.broker.metrics import METRICS

PAGE = Path(__file__).resolve().parent.parent / "docs/metrics.md"

HEAD = """# Metrics and health

`clarion serve` serves three pages at http://127.0.0.1:9644, or where `--http` says, beside the [API](http.md).
The table is generated from the code by `make docs`.

| page | what it says |
|---|---|
| `/healthz` | 200: the process answers |
| `/readyz` | 200: groups are loaded, logs are writable, the disk has room, the lease is valid; 503 and why otherwise |
| `/metrics` | the numbers below, for Prometheus, and those of the process (`process_*`) |

A scrape reads the state that is there anyway; between scrapes metrics cost nothing. The page is made at most once per
second and shared by all who ask. It has at most 250,000 series and 32 MB, and labels of at most 255 characters;
`clarion_metrics_left_out_series` says what had no room. Sixteen may fetch it at a time, others get a 503; `/healthz`
and `/readyz` have places of their own.

| metric | kind | labels | meaning |
|---|---|---|---|
"""


def metrics_page() -> str:
    rows = [f"| `{one.name}` | {one.kind} | {', '.join(one.labels)} | {one.help} |" for one in METRICS.values()]
    return HEAD + "\n".join(rows) + "\n"


if __name__ == "__main__":
    PAGE.write_text(metrics_page())
