"""InitProducerId v0-5: a producer's id and epoch.

v2 flexible · v3 the producer's present id and epoch, so that it can recover · v4 PRODUCER_FENCED ·
v5 TRANSACTION_ABORTABLE.
"""

from __future__ import annotations

from clarion.wire.messages import message


@message
class InitProducerIdRequest:
    transactional_id: str | None = None
    transaction_timeout: int
    producer_id: int = -1  # v3+
    producer_epoch: int = -1  # v3+


@message
class InitProducerIdResponse:
    throttle_time: int = 0
    error_code: int = 0
    producer_id: int = -1
    producer_epoch: int
