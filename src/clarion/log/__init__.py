"""One partition's files: segments, indexes, recovery, retention, compaction. Synchronous; it never awaits and knows no socket."""
