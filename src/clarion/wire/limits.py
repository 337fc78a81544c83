"""How much one request may ask a reader to build, whatever its bytes say."""

from __future__ import annotations

from typing import Final

ELEMENTS_MAX: Final = 250_000
"""Array elements and tagged fields in one message.

An element may be a single byte on the wire and a hundred in memory: 250,000 take about half a second and some tens
of megabytes. The largest honest requests (every partition of a cluster in one Fetch) stay below 100,000.
"""

TAGGED_FIELDS_MAX: Final = 16
"""Unknown tagged fields in one struct of a hand-written request. Kafka's own structs have at most four; a frame of
100 MB that is nothing but tagged fields must not hold the loop for seconds.
"""
