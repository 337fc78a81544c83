"""AlterConfigs v0-2: replace all settings of a resource; what is not named goes back to its default.

v1 same · v2 flexible.

Deprecated since Kafka 2.3, still sent by older tools. As in Kafka, loggers cannot be changed like this.
"""

from __future__ import annotations

from collections import Counter

from clarion.broker.apis.refusals import REFUSALS, refusal_of
from clarion.broker.apis.setting_alterations import alter
from clarion.broker.authorizer import Principal
from clarion.broker.broker import Broker, RequestContext
from clarion.model.errors import ErrorCode, KafkaError
from clarion.model.setting_changes import AlterOperation, Edit, SettingChange
from clarion.wire.messages.configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)


async def handle(broker: Broker, request: AlterConfigsRequest, context: RequestContext) -> AlterConfigsResponse:
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
            AlterConfigsResourceResponse(
                error_code=code,
                error_message=message,
                resource_type=one.resource_type,
                resource_name=one.resource_name,
            )
        )
    return AlterConfigsResponse(responses=tuple(responses))


async def _alter(broker: Broker, who: Principal, asked: AlterConfigsResource, *, validate_only: bool) -> None:
    changes = [SettingChange(config.name, AlterOperation.SET, config.value) for config in asked.configs]
    edit = Edit(changes, replaces_all=True)
    await alter(broker, who, asked.resource_type, asked.resource_name, edit, validate_only=validate_only)
