"""IncrementalAlterConfigs v0-1: set, delete, append to or subtract from single settings of a topic.

v1 flexible.

Left out: brokers and other resources, see `setting_alterations`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from clarion.broker.apis.refusals import REFUSALS, refusal_of
from clarion.broker.apis.setting_alterations import alter, check_named_once
from clarion.broker.broker import Broker, RequestContext
from clarion.model.errors import ErrorCode, KafkaError
from clarion.model.setting_changes import SettingChange, change_overrides
from clarion.wire.messages.k44_incremental_alter_configs import (
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)


async def handle(
    broker: Broker, request: IncrementalAlterConfigsRequest, context: RequestContext
) -> IncrementalAlterConfigsResponse:
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
    return IncrementalAlterConfigsResponse(responses=tuple(responses))


async def _alter(broker: Broker, asked: AlterConfigsResource, *, validate_only: bool) -> None:
    def changed(present: Mapping[str, str]) -> Mapping[str, str]:
        check_named_once(config.name for config in asked.configs)
        changes = [SettingChange(config.name, config.config_operation, config.value) for config in asked.configs]
        return change_overrides(present, changes, broker.partitions.defaults)

    await alter(broker, asked.resource_type, asked.resource_name, changed, validate_only=validate_only)
