"""The load generators: prebuilt frames over plain sockets, each run in a process of its own.

`run_job` is the only door: it starts `worker`, hands it a job and returns its figures.
"""

from __future__ import annotations

import json
import subprocess
import sys

from bench.peers.process import ROOT

JOB_WITHIN_S = 180.0  # far above any job's own limit: a load generator that needs longer has hung


class LoadFailed(Exception):
    """A load generator ended without figures; the message is its last line."""


def run_job(job: str, **settings: object) -> dict[str, float]:
    wanted = json.dumps({"job": job, "settings": settings})
    try:
        done = subprocess.run(
            [sys.executable, "-m", "bench.load.worker"], input=wanted, capture_output=True, text=True,
            cwd=ROOT, timeout=JOB_WITHIN_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise LoadFailed(f"the {job} load did not end within {JOB_WITHIN_S:.0f} s") from None
    if done.returncode:
        raise LoadFailed((done.stderr.strip().splitlines() or ["it said nothing"])[-1])
    figures: dict[str, float] = json.loads(done.stdout)
    return figures
