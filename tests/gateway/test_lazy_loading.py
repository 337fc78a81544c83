"""A broker without push subscriptions has nothing of what push stands on; the first one loads it, in a thread."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
import clarion
from clarion.testing import embedded

def loaded():
    return sorted({name.partition(".")[0] for name in sys.modules} & {"aiohttp", "yarl", "multidict"})

with embedded(topics=["t"]) as broker:
    broker.produce("t", "one")
    print(loaded(), [name for name in sys.modules if name in ("clarion.gateway.pusher", "clarion.consumers.push")])
"""


def test_nothing_of_push_is_loaded_until_it_is_needed() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.strip() == "[] []"
