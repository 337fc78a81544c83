"""What a queue's consumers say of the messages they took, and how those are told to them."""

from __future__ import annotations

from typing import Any

from clarion.broker.queues import Delivery, Settlement
from clarion.gateway import schemas
from clarion.gateway.brokers import Brokers
from clarion.gateway.identity import principal
from clarion.gateway.message_forms import record_to_json
from clarion.gateway.problems import STATUSES
from clarion.model.durations import is_duration, parse_duration_ms
from clarion.model.errors import ErrorCode, KafkaError
from clarion.wire.records import Record


async def settle_all(brokers: Brokers, name: str, asked: list[schemas.SettlementIn]) -> list[schemas.SettlementResult]:
    settlements = [
        Settlement(
            one.receipt,
            one.action,
            None if one.delay is None else _duration_ms("delay", one.delay),
            one.reason,
            0 if one.extend is None else _duration_ms("extend", one.extend),
        )
        for one in asked
    ]
    results = await brokers.broker.queues.settle(principal(), name, settlements)
    return [
        schemas.SettlementResult(receipt=one.receipt, status=200)
        if result.code is ErrorCode.NONE
        else schemas.SettlementResult(
            receipt=one.receipt,
            status=STATUSES[result.code],
            code=result.code.name,
            detail=result.message or result.code.name,
        )
        for one, result in zip(asked, results, strict=True)
    ]


def _duration_ms(name: str, told: str | int) -> int:
    if isinstance(told, int) and told >= 0:
        return told
    if isinstance(told, str) and is_duration(told):
        return parse_duration_ms(told)
    raise KafkaError(ErrorCode.INVALID_REQUEST, f"{name} is a duration as 30s, or whole milliseconds")


def told_delivery(one: Delivery, encoding: str) -> dict[str, Any]:
    record = Record(one.offset, one.timestamp_ms, one.key, one.value, one.headers)
    return {
        "topic": one.topic,
        "topic_id": str(one.topic_id),
        "partition": one.partition,
        **record_to_json(record, encoding),
        "deliveries": one.deliveries,
        "receipt": one.receipt,
    }
