"""The demo's pipelines, as anybody would write them: `clarion pipeline run` plays this very file."""

from __future__ import annotations

from clarion.pipeline import archive, rollup

health = rollup(
    "logs",
    every="2 seconds",
    by="service",
    quantiles={"latency_ms": [0.5, 0.99]},
    time="ts",
    delay="5 seconds",
    to="service_health",
    name="rollup",
)

kept = archive(
    "logs",
    "lake/logs",
    json="number long, ts timestamp, level string, service string, latency_ms double",
    trigger="2 seconds",
    name="archive",
)
