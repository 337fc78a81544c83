"""AlterConfigs v0-2: replace all settings of a resource; what is not named goes back to its default.

v1 same · v2 flexible.

Deprecated since Kafka 2.3, still sent by older tools. As in Kafka, loggers cannot be changed like this.
"""

from __future__ import annotations

from clarion.broker.apis.setting_alterations import alter_each
from clarion.broker.broker import Broker, RequestContext
from clarion.model.setting_changes import AlterOperation, Edit, SettingChange
from clarion.wire.messages.configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)


async def handle(broker: Broker, request: AlterConfigsRequest, context: RequestContext) -> AlterConfigsResponse:
    altered = await alter_each(broker, context, request.resources, _edit, validate_only=request.validate_only)
    return AlterConfigsResponse(responses=tuple(AlterConfigsResourceResponse(**one._asdict()) for one in altered))


def _edit(asked: AlterConfigsResource) -> Edit:
    changes = [SettingChange(config.name, AlterOperation.SET, config.value) for config in asked.configs]
    return Edit(changes, replaces_all=True)
