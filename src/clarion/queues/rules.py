"""The rules by which a share-partition delivers: its group's settings, or those of the subscription of that name."""

from __future__ import annotations

from typing import Final, NamedTuple

DELAY_MAX_MS: Final = 30 * 24 * 3_600_000  # of a release: longer than that the log itself keeps few records
EXTEND_MAX_MS: Final = 12 * 3_600_000  # of a lock at a time, as in other queues; who needs longer says so again
REASON_MAX: Final = 256  # characters of why a record was rejected: it is kept with the state until it is a dead letter

_DOUBLINGS_MAX: Final = 40  # 2^40 ms are 35 years: beyond every limit, and still a small number


class ShareLimits(NamedTuple):
    """They may change while records are in flight."""

    lock_duration_ms: int
    deliveries_max: int
    in_flight_max: int
    backoff_min_ms: int = 0  # after the first delivery that came to nothing; twice as long after each more
    backoff_max_ms: int = 0
    has_dead_letters: bool = False  # what is given up stays until it is written somewhere else
    keeps_key_order: bool = False  # no record is delivered while an earlier one with its key is not done

    def backoff_ms(self, deliveries: int, fraction: float) -> int:
        """Between half of it and all of it, so that what failed together does not come again together."""
        doublings = min(max(deliveries - 1, 0), _DOUBLINGS_MAX)
        longest = min(self.backoff_min_ms << doublings, self.backoff_max_ms)
        return longest - int(longest * fraction / 2)
