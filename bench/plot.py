"""The picture: what matters most in absolute figures, and every promise as a bar against its bound."""

from __future__ import annotations

from pathlib import Path
from typing import Any

PEERS = {"clarion": ("Clarion", "#1b7f79"), "kafka": ("Apache Kafka", "#c9c5ba"), "nats": ("NATS JetStream", "#e3b96b")}
# panel title, unit, and its groups: label, row, metric
PANELS: tuple[tuple[str, str, tuple[tuple[str, str, str], ...]], ...] = (
    ("Produce, 64 KB batches, page cache", "MB/s",
     tuple((f"{label}", f"produce-{key}-page-cache", "mb_per_s") for key, label in
           (("100b", "100 B"), ("1k", "1 KB"), ("10k", "10 KB")))),
    ("Produce, on disk before the reply", "MB/s",
     tuple((f"{label}", f"produce-{key}-fsync", "mb_per_s") for key, label in
           (("100b", "100 B"), ("1k", "1 KB"), ("10k", "10 KB")))),
    ("Consume and fan out, 1 KB", "MB/s delivered",
     (("consume", "consume-1k", "mb_per_s"), ("1→1", "fanout-1", "mb_per_s"), ("1→10", "fanout-10", "mb_per_s"),
      ("1→100", "fanout-100", "mb_per_s"))),
    ("End-to-end latency at a fixed rate", "ms, log scale",
     (("p50", "latency-page-cache", "p50_ms"), ("p99", "latency-page-cache", "p99_ms"),
      ("p50 fsync", "latency-fsync", "p50_ms"), ("p99 fsync", "latency-fsync", "p99_ms"))),
    ("Tiny synchronous requests", "requests/s, log scale",
     tuple((f"{count}{' fsync' if kind == 'fsync' else ''}", f"tiny-{count}-{kind}", "requests_per_s")
           for kind in ("page-cache", "fsync") for count in (1, 50, 500))),
)  # fmt: skip


def draw(path: Path, results: dict[str, Any]) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    rows = {row["id"]: row for row in results["rows"]}
    plt.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
    figure, axes = plt.subplots(3, 2, figsize=(13, 13), layout="constrained")
    for axis, (title, unit, groups) in zip(axes.flat, PANELS, strict=False):
        _bars(axis, title, unit, groups, rows)
    _goals(axes.flat[-1], results["goals"])
    handles, labels = axes.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False, fontsize=11)
    machine = results["machine"]
    where = f"{machine['cores']} cores, {machine['memory_gb']:.0f} GB, {machine['cpu']}"
    figure.suptitle(f"Clarion beside Apache Kafka and NATS JetStream\n{where}, {results['when'][:10]}", fontsize=13)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _bars(axis: Any, title: str, unit: str, groups: Any, rows: dict[str, Any]) -> None:
    width = 0.27
    for place, (peer, (label, colour)) in enumerate(PEERS.items()):
        heights = [_figure(rows, row, peer, metric) for _, row, metric in groups]
        at = [number + (place - 1) * width for number in range(len(groups))]
        bars = axis.bar(at, [height or 0 for height in heights], width, label=label, color=colour)
        texts = ["" if height is None else _short(height) for height in heights]
        axis.bar_label(bars, texts, padding=2, fontsize=7)
    if "log" in unit and any(_figure(rows, row, peer, metric) for _, row, metric in groups for peer in PEERS):
        axis.set_yscale("log")
    axis.set_xticks(range(len(groups)), [label for label, _, _ in groups])
    axis.set_title(title, loc="left", fontweight="bold")
    axis.set_ylabel(unit)
    axis.margins(y=0.12)


def _goals(axis: Any, goals: list[dict[str, Any]]) -> None:
    """Each promise as how far beyond its bound it is: to the right of the line is kept."""
    kept = [(_goal_label(goal), _headroom(goal), goal["verdict"]) for goal in goals if goal["value"]]
    names = [name for name, _, _ in kept][::-1]
    values = [value for _, value, _ in kept][::-1]
    colours = ["#1b7f79" if word == "PASS" else "#c0392b" for _, _, word in kept][::-1]
    axis.barh(range(len(names)), [value - 1 for value in values], left=1, color=colours)
    axis.set_yticks(range(len(names)), names, fontsize=7)
    if kept:
        axis.set_xscale("log")
    axis.axvline(1, color="black", linewidth=1)
    axis.set_xlabel("times better than the goal (log scale)")
    axis.set_title("Goals", loc="left", fontweight="bold")


def _headroom(goal: dict[str, Any]) -> float:
    bound = float(goal["goal"].split()[1])
    return float(goal["value"]) / bound if goal["goal"].startswith("≥") else bound / float(goal["value"])


def _goal_label(goal: dict[str, Any]) -> str:
    return f"{goal['row']} {goal['metric'].rsplit('_ms')[0].replace('_', ' ')} {goal['goal']}"


def _figure(rows: dict[str, Any], row: str, peer: str, metric: str) -> float | None:
    value: float | None = rows.get(row, {}).get("peers", {}).get(peer, {}).get("figures", {}).get(metric)
    return value


def _short(value: float) -> str:
    if value >= 10_000:
        return f"{value / 1000:.0f}k"
    return f"{value:.0f}" if value >= 10 else f"{value:.2f}"
