"""IncrementalAlterConfigs v0-1: set, delete, append to or subtract from single settings of a resource.

v1 flexible.

Topics, this broker and all brokers, groups, subscriptions to clients' metrics, and the levels of loggers.
"""

from __future__ import annotations

from clarion.broker.apis.setting_alterations import alter_each
from clarion.broker.broker import Broker, RequestContext
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
    altered = await alter_each(broker, context, request.resources, _edit, validate_only=request.validate_only)
    return IncrementalAlterConfigsResponse(
        responses=tuple(IncrementalConfigsResourceResponse(**one._asdict()) for one in altered)
    )


def _edit(asked: IncrementalConfigsResource) -> Edit:
    changes = [SettingChange(config.name, config.config_operation, config.value) for config in asked.configs]
    return Edit(changes, replaces_all=False)
