"""One partition's files, and the data directory that they lie in: segments, indexes, recovery, retention, compaction.

Words: a *segment* is a run of batches in one file, named by its first offset; all but the last, the *active* one, are
sealed. A *position* is a byte in a segment. *Flushed* is what a power loss cannot take any longer.

Everything here is synchronous: this room never awaits, knows no socket, no leader and no watermark, and never looks
into a batch behind its header but to answer a search by time.
"""
