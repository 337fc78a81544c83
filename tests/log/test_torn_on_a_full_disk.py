"""A write torn by a full disk is cut off for good: no power loss may bring it back into a segment that is sealed."""

from __future__ import annotations

import errno
import random

import pytest

from tests.log.batches import append, content, open_log
from tests.sim.disk import SimDisk


@pytest.mark.parametrize("closes", [False, True])
def test_a_torn_batch_does_not_come_back_behind_a_recovery_point(closes: bool):
    for seed in range(40):
        disk = SimDisk()
        disk.make_folder("/data")
        disk.sync_folder("/")
        log = open_log(disk)
        append(log, size=300)
        log.flush()
        disk.fail_when(lambda what: what.kind == "write", errno.ENOSPC)
        with pytest.raises(OSError):
            append(log, size=400)
        log.roll(1000)
        append(log, size=300)
        log.flush()
        point = log.flushed.offset
        if closes:
            log.close()
        after = disk.power_loss(random.Random(seed))
        found = open_log(after, clean=closes, recovery_point=point)
        assert content(found) == content(log), f"seed {seed}"
        assert found.next_offset == 2
