"""Queue delivery on the log: share-partitions (KIP-932), their state in `__share_group_state`, and share sessions.

A share-partition is one partition as one share group sees it: which records are in whose hands, which are done, which
come again. Pure, as the groups are: events and `now` in, results and state deltas out. This room never does I/O, never
reads a clock, and never looks at a record: it knows offsets only. It stands on `groups` for the protocol between a
coordinator and its driver, and on nothing else of that room.
"""
