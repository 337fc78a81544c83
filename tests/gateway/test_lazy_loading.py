"""A broker has nothing loaded of what only some need: HTTP, push, the catalog, filters, compression."""

from __future__ import annotations

import subprocess
import sys

# Each costs an idle broker memory and a start its time. The first one who needs it has it loaded.
ONLY_FOR_SOME = {
    *("aiohttp", "yarl", "multidict", "clarion.gateway.pusher", "clarion.consumers.push"),
    *("fastapi", "starlette", "pydantic", "uvicorn", "httptools", "websockets", "clarion.gateway.app"),
    *("sqlalchemy", "alembic", "cel", "clarion.catalog.database"),
    *("cramjam", "re2", "h11"),
    *("rich", "confluent_kafka", "prometheus_client"),
}
PROGRAM = """
import sys
import clarion
from clarion.testing import embedded

with embedded(topics=["t"], metrics_port=0) as broker:
    broker.produce("t", "one")
    print(*sys.modules)
"""


def test_an_idle_broker_has_loaded_nothing_that_only_some_need() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=120)
    loaded = {*done.stdout.split()}
    assert "clarion.broker.server" in loaded
    assert loaded & ONLY_FOR_SOME == set()
