"""A log on a real disk for the tests of retention and compaction, and the few things they do with it."""

from uuid import UUID

from clarion.consumers.retention import decide
from clarion.log.compaction import CompactionResult, compact, plan_compaction
from clarion.log.config import LogConfig
from clarion.log.log import Log
from clarion.log.retention import RetentionWalk, is_worth_trimming, trim_first
from clarion.log.swap import Swap
from clarion.log.views import view_of
from clarion.model.topic_settings import TopicSettings, parse
from clarion.wire.batch import read_header
from clarion.wire.records import decode_batch, encode_batch
from clarion.world import RealDisk

NOW = 1_700_000_000_000
TOPIC_ID = UUID(int=7)
DEFAULTS = TopicSettings()


def topic(**overrides):
    """Settings by Kafka's names, with underscores for dots; what is expired goes at once unless told otherwise."""
    overrides.setdefault("clarion_retention_grace_ms", 0)
    return parse({name.replace("_", "."): str(value) for name, value in overrides.items()}, DEFAULTS)


def open_log(folder, settings=DEFAULTS, disk=None, *, clean=False):
    return Log.open(disk or RealDisk(), str(folder), LogConfig.of(settings), now_ms=NOW, clean=clean, topic_id=TOPIC_ID)


def append(log, records, now_ms=NOW, **batch):
    """Append one batch of (key, value, timestamp) at the log's end."""
    data = encode_batch(
        [(key, value, (), timestamp) for key, value, timestamp in records], base_offset=log.next_offset, **batch
    )
    log.append(data, read_header(data), now_ms)
    return data


def append_bytes(log, data, now_ms=NOW):
    log.append(data, read_header(data), now_ms)


def records(log, start=None):
    """What a consumer that begins there can read."""
    start = log.start_offset if start is None else start
    return [one for batch in log.batches(start) for one in decode_batch(batch) if one.offset >= start]


def headers(log):
    return [header for header, _ in log.batch_headers(log.start_offset)]


def swap_in(log, view, cleaned):
    """All steps at once, as the broker does them; False if the log has moved on."""
    swap = Swap(log, view, cleaned)
    if not swap.is_possible:
        swap.withdraw()
        return False
    try:
        swap.announce()
    except OSError as error:
        swap.fail_to_announce(error)
        raise
    assert swap.take()
    swap.sync()
    swap.finish()
    return True


def plan_of(log, settings, now_ms, needs=(), *, limit_offset=None, **options):
    """What a retention sweep of the broker would do."""
    walk = RetentionWalk(view_of(log), settings, now_ms, **options)
    decided = decide(settings, walk, needs)
    limit = log.next_offset if limit_offset is None else limit_offset
    return walk.plan(decided.start, decided.reason, limit_offset=limit, held_by=decided.held_by)


def sweep(log, settings, now_ms, *, trim=True, **options):
    """One retention sweep as the broker does it."""
    plan = plan_of(log, settings, now_ms, **options)
    if plan.roll:
        log.roll(now_ms)
    if plan.reason:
        log.advance_start(plan.new_start_offset)
    view = view_of(log)
    if trim and not plan.damage and is_worth_trimming(view, log.end):
        assert swap_in(log, view, trim_first(view))
    return plan


def clean(log, settings, now_ms, *, first_dirty=0, keep=frozenset(), force=True, unreadable=(), **options):
    """One run of compaction as the broker does it; returns the plan and the result."""
    view = view_of(log)
    plan = plan_compaction(view, settings, now_ms, first_dirty=first_dirty, limit=log.end)
    result = CompactionResult(first_dirty, unreadable=set(unreadable))
    if plan.reason or force:
        for cleaned in compact(view, plan, settings, now_ms, result, keep_last_offsets=keep, **options):
            assert swap_in(log, view, cleaned)
    return plan, result
