"""IncrementalAlterConfigs v0-1: set, delete, append to or subtract from single settings of a resource.

v1 flexible.

Topics, this broker and all brokers, groups, subscriptions to clients' metrics, and the levels of loggers.
"""

from __future__ import annotations

from collections import Counter

from clarion.broker.apis.refusals import REFUSALS, refusal_of
from clarion.broker.apis.setting_alterations import alter
from clarion.broker.authorizer import Principal
from clarion.broker.broker import Broker, RequestContext
from clarion.model.errors import ErrorCode, KafkaError
from clarion.model.setting_changes import Edit, SettingChange
from clarion.wire.messages.configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    IncrementalConfigsResource,
    IncrementalConfigsResourceResponse,
)


async def handle(
    broker: Broker, request: IncrementalAlterConfigsRequest, context: RequestContext
) -> IncrementalAlterConfigsResponse:
    times_named = Counter((one.resource_type, one.resource_name) for one in request.resources)
    responses = []
    async for one in broker.turns.each(request.resources):
        code, message = ErrorCode.NONE, None
        try:
            if times_named[one.resource_type, one.resource_name] > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
            await _alter(broker, context.principal, one, validate_only=request.validate_only)
        except REFUSALS as error:
            code, message = refusal_of(error, one.resource_name)
        responses.append(
            IncrementalConfigsResourceResponse(
                error_code=code,
                error_message=message,
                resource_type=one.resource_type,
                resource_name=one.resource_name,
            )
        )
    return IncrementalAlterConfigsResponse(responses=tuple(responses))


async def _alter(broker: Broker, who: Principal, asked: IncrementalConfigsResource, *, validate_only: bool) -> None:
    changes = [SettingChange(config.name, config.config_operation, config.value) for config in asked.configs]
    edit = Edit(changes, replaces_all=False)
    await alter(broker, who, asked.resource_type, asked.resource_name, edit, validate_only=validate_only)
