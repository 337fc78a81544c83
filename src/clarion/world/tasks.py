"""Tasks that nobody awaits: one that ends by a mistake of ours says so at once.

asyncio tells of it when the task is collected: of one that is held until the broker stops, that is never.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from functools import partial
from typing import Any, TypeVar

from clarion.world.events import event_log

T = TypeVar("T")

log = event_log("world")


def start_task(work: Coroutine[Any, Any, T], what: str) -> asyncio.Task[T]:
    """Whoever gets it holds it, and cancels it in the end."""
    task = asyncio.get_running_loop().create_task(work)
    task.add_done_callback(partial(_tell, what))
    return task


def _tell(what: str, task: asyncio.Task[Any]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("task_failed", task=what, error=error)
