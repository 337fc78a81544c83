"""Messages of some age, for stories about retention."""

from tests.log.partitions import NOW, append, records, topic

SECOND = 1000
TEN_SECONDS = topic(retention_ms=10 * SECOND)


def one_each(log, *ages_ms, **batch):
    """A batch per age, with one message of that age."""
    for age in ages_ms:
        append(log, [(None, b"x", NOW - age)], **batch)


def offsets(log):
    return [record.offset for record in records(log)]
