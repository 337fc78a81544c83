"""The machine under the figures: what it is, and whether anybody else was using it."""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path
from typing import Any

from clarion.cli.doctor import is_slow_build

BUSY_SHARE_MAX = 0.1  # of all cores, before anything of ours runs; above it the figures are not worth quoting


def machine() -> dict[str, Any]:
    """What the figures depend on, without naming the machine."""
    models = [line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    memory = next((line.split()[1] for line in _lines("/proc/meminfo") if line.startswith("MemTotal")), "0")
    return {
        "cpu": models[0] if models else platform.machine(),
        "cores": os.cpu_count(),
        "memory_gb": round(int(memory) / 1e6, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "python_is_optimised": not is_slow_build(),
    }


def busy_share(seconds: float = 1.0) -> float:
    """The share of all cores that somebody uses, or that the hypervisor withholds, while we only wait."""
    before = _ticks(_lines("/proc/stat")[0])
    time.sleep(seconds)
    return share_between(before, _ticks(_lines("/proc/stat")[0]))


def share_between(before: list[int], after: list[int]) -> float:
    """Busy over all, from two readings of the first line of /proc/stat."""
    spent = [late - early for early, late in zip(before, after, strict=True)]
    idle = spent[3] + spent[4]  # idle and waiting for a disk
    return 1 - idle / sum(spent) if sum(spent) else 0.0


def _ticks(line: str) -> list[int]:
    return [int(field) for field in line.split()[1:9]]  # guest time is counted within user time already


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []
