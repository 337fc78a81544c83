"""ApiVersions v0-4: what this broker speaks.

v3 flexible, client's name and version, features · v4 features with a minimum of 0. An unknown version is answered in
version 0 with error 35 and the ranges (`dispatch`), and the response header is never flexible, since the client cannot
know yet.
"""

from __future__ import annotations

from clarion.broker.broker import Broker, RequestContext
from clarion.cluster import schema
from clarion.cluster.features import CLUSTER_FEATURE
from clarion.model.errors import ErrorCode
from clarion.wire.api_versions import ClusterLevel, encode_refusal, encode_reply, names_its_software
from clarion.wire.messages.metadata import ApiVersionsRequest


async def handle(broker: Broker, request: ApiVersionsRequest, context: RequestContext) -> bytes:
    if not names_its_software(request, context.version):
        return encode_refusal(context.version, ErrorCode.INVALID_REQUEST)
    if broker.node is None:
        return encode_reply(context.version)
    level = ClusterLevel(CLUSTER_FEATURE, schema.FEATURE_LEVEL, broker.image.feature_level)
    return encode_reply(context.version, level)
