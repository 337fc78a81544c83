"""Clarion: a durable, log-based publish-subscribe broker that speaks Kafka's wire protocol."""

import os

__version__ = "0.1.0"

if os.environ.get("CLARION_COMPILED") == "1":
    from clarion.compiled import choose

    choose(is_command=False)
