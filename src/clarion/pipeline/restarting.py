"""Whether a pipeline that has failed is started again, and after which wait. Pure but for the jitter's randomness.

A restart mends what passes: a broker that was away for longer than its clients wait, a worker or a whole Spark that was
killed, a table that others were faster to write to. What somebody has to change first (a definition, an option, a
column, a topic whose messages are gone) is no better at the next try, so that it ends the pipeline at once.
"""

from __future__ import annotations

from clarion.pipeline.reasons import innermost
from clarion.world.randomness import Randomness, SystemRandomness

# In a row: with the waits below about five minutes, in which a broker or a cluster has come back or somebody is needed.
TRIES_MAX = 10
WAIT_SECONDS_FIRST = 1.0
WAIT_SECONDS_MAX = 60.0  # longer, and people wait for a pipeline that could run
# A run of this length has done its work: what fails then is another failure, not the same one again.
HEALTHY_SECONDS = 300.0

_SOMEBODY_IS_NEEDED = frozenset(
    {
        "DefinitionError", "OptionError", "RunRefusedError", "LakeError", "DataLossError", "RefusedRowError",
        "CorruptDataError", "TlsError", "ParseException", "NameError", "TypeError", "AttributeError", "ImportError",
        "ModuleNotFoundError", "SyntaxError",
    }
)  # fmt: skip
# Spark says so of a plan that makes no sense; but also of a Python that it could not start in time.
_PLAN, _WORKER = "AnalysisException", "PYTHON_DATA_SOURCE_ERROR"
_BAD_RECORD = "bad record in "  # `on_bad="fail"`: it is still there


class Restarts:
    """The failures of one pipeline in a row."""

    def __init__(self, randomness: Randomness | None = None) -> None:
        self._randomness = randomness or SystemRandomness()
        self.tries = 0

    def wait_after(self, ran_seconds: float) -> float | None:
        """How many seconds to wait before the next try; None if there have been enough."""
        if ran_seconds >= HEALTHY_SECONDS:
            self.tries = 0
        if self.tries == TRIES_MAX:
            return None
        wait: float = min(WAIT_SECONDS_FIRST * 2**self.tries, WAIT_SECONDS_MAX)
        self.tries += 1
        # Between half and all of it: pipelines that a broker has failed together do not come back together.
        share: float = int.from_bytes(self._randomness.bytes(4), "big") / 2**32
        return wait * (0.5 + 0.5 * share)


def can_be_mended(error: Exception) -> bool:
    """Whether the next try may go better although nobody has changed anything."""
    text = str(error)
    found = innermost(text)
    name = found[0] if found else type(error).__name__
    if name in _SOMEBODY_IS_NEEDED or type(error).__name__ in _SOMEBODY_IS_NEEDED or _BAD_RECORD in text:
        return False
    return type(error).__name__ != _PLAN or _WORKER in text
