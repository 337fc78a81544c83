"""The seams to the outside that simulation replaces: wall clock, disk, randomness, the event journal.

Time that passes, sleeps and sockets come from the running event loop. This room never decides anything.
"""

from clarion.world.clock import Clock, SystemClock, boot_seconds, precise_seconds, thread_seconds
from clarion.world.disk import (
    NO_DESCRIPTOR,
    NO_ROOM,
    Buffer,
    Disk,
    DiskFile,
    RealDisk,
    is_private,
    make_lasting_folder,
    make_private,
    read_file,
    replace_file,
    write_lasting,
)
from clarion.world.events import EventLog, event_log
from clarion.world.randomness import Randomness, SystemRandomness, new_session_id, new_uuid

__all__ = [
    "NO_DESCRIPTOR",
    "NO_ROOM",
    "Buffer",
    "Clock",
    "Disk",
    "DiskFile",
    "EventLog",
    "Randomness",
    "RealDisk",
    "SystemClock",
    "SystemRandomness",
    "boot_seconds",
    "event_log",
    "is_private",
    "make_lasting_folder",
    "make_private",
    "new_session_id",
    "new_uuid",
    "precise_seconds",
    "read_file",
    "replace_file",
    "thread_seconds",
    "write_lasting",
]
