"""Ready-made pipelines: archive, replay, rollup, latest. Each is an ordinary `Pipeline`, made from a few options.

In Python: `from clarion.pipeline import archive`; `events = archive("events", "lake/events")` in a file is a pipeline
like any other. On the command line: `clarion pipeline run archive --topic events --table lake/events`, which
`from_words` turns into the same call.
"""

from __future__ import annotations

from clarion.pipeline.ready.registry import REGISTRY, Option, Ready, from_words

__all__ = ["REGISTRY", "Option", "Ready", "from_words"]
