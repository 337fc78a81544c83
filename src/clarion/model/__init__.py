"""The shared vocabulary: ids, offsets, errors, topic settings.

Everything here is a plain value. This room never does I/O, never reads a clock and imports no other room.
"""
