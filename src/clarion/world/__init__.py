"""The seams to the outside that simulation replaces: wall clock, disk, randomness, the event journal.

Time that passes, sleeps and sockets come from the running event loop. This room never decides anything.
"""

from clarion.world.clock import Clock, SystemClock
from clarion.world.disk import Buffer, Disk, DiskFile, RealDisk, read_file, replace_file
from clarion.world.events import EventLog, event_log

__all__ = [
    "Buffer",
    "Clock",
    "Disk",
    "DiskFile",
    "EventLog",
    "RealDisk",
    "SystemClock",
    "event_log",
    "read_file",
    "replace_file",
]
