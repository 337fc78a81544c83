"""Messages with keys, for stories about compaction."""

from tests.log.partitions import NOW, append, records, topic

HOUR = 3_600_000
COMPACT = topic(cleanup_policy="compact")
GRACE = topic(cleanup_policy="compact", delete_retention_ms=HOUR)


def write(log, *pairs, roll=True, **batch):
    """One batch of `key=value` texts; a bare key is a tombstone."""
    split = [pair.encode().split(b"=") for pair in pairs]
    append(log, [(key, rest[0] if rest else None, NOW) for key, *rest in split], **batch)
    if roll:
        log.roll(NOW)


def contents(log):
    return [
        f"{one.offset}:{one.key.decode()}" + ("" if one.value is None else f"={one.value.decode()}")
        for one in records(log)
    ]
