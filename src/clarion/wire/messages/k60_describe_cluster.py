"""DescribeCluster v0-2.

v1 endpoint type (1 brokers, 2 controllers) · v2 fenced brokers.
"""

from __future__ import annotations

from clarion.wire.messages import message


@message
class DescribeClusterRequest:
    include_cluster_authorized_operations: bool
    endpoint_type: int = 1  # v1+
    include_fenced_brokers: bool = False  # v2+


@message
class DescribeClusterBroker:
    broker_id: int
    host: str
    port: int
    rack: str | None = None
    is_fenced: bool = False  # v2+


@message
class DescribeClusterResponse:
    throttle_time: int = 0
    error_code: int = 0
    error_message: str | None = None
    endpoint_type: int = 1  # v1+
    cluster_id: str
    controller_id: int = -1
    brokers: tuple[DescribeClusterBroker, ...]
    cluster_authorized_operations: int = -2147483648
