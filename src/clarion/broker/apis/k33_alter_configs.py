"""AlterConfigs v0-2: replace all settings of a topic; what is not named goes back to its default.

v1 same · v2 flexible.

Deprecated since Kafka 2.3, still sent by older tools. Left out: brokers and other resources, see `setting_alterations`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from clarion.broker.apis.refusals import REFUSALS, refusal_of
from clarion.broker.apis.setting_alterations import alter, check_named_once
from clarion.broker.broker import Broker, RequestContext
from clarion.model.errors import ErrorCode, KafkaError
from clarion.wire.messages.k33_alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)


async def handle(broker: Broker, request: AlterConfigsRequest, context: RequestContext) -> AlterConfigsResponse:
    times_named = Counter((one.resource_type, one.resource_name) for one in request.resources)
    responses = []
    for one in request.resources:
        code, message = ErrorCode.NONE, None
        try:
            if times_named[one.resource_type, one.resource_name] > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "the resource is named twice in one request")
            await _alter(broker, one, validate_only=request.validate_only)
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


async def _alter(broker: Broker, asked: AlterConfigsResource, *, validate_only: bool) -> None:
    def replaced(_present: Mapping[str, str]) -> Mapping[str, str]:
        check_named_once(config.name for config in asked.configs)
        nameless = next((config.name for config in asked.configs if config.value is None), None)
        if nameless is not None:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {nameless}")
        return {config.name: config.value or "" for config in asked.configs}

    await alter(broker, asked.resource_type, asked.resource_name, replaced, validate_only=validate_only)
