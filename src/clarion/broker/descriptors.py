"""How a broker shares out the files that its process may open: to logs, and to connections."""

from __future__ import annotations

import resource
from dataclasses import fields
from typing import Any, Final

from clarion.broker.config import BrokerConfig
from clarion.broker.limits import Limits
from clarion.net import NetLimits
from clarion.world import event_log

log = event_log("broker")

_OPEN_FILES_ENOUGH: Final = 16_384  # log files in use at a time, where descriptors are no matter
_SPARE_DESCRIPTORS: Final = 128  # standard streams, the store, files opened for a moment, listeners, a few probes
_CONNECTIONS_MIN: Final = 16
_CONNECTIONS_PLENTY: Final = 2_000  # with fewer an operator wants to know of it, also without having asked for more


def open_files_max(config: BrokerConfig) -> int:
    if config.limits.open_files_max:
        return config.limits.open_files_max
    soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(64, min(soft, _OPEN_FILES_ENOUGH * 4) // 4)


def connections_max(config: BrokerConfig) -> int:
    """As many as the settings say, and no more than leave the log its files."""
    soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return config.limits.connections_max
    room = max(_CONNECTIONS_MIN, soft - open_files_max(config) - _SPARE_DESCRIPTORS)
    is_asked_for = config.limits.connections_max != Limits().connections_max
    if room < config.limits.connections_max and (is_asked_for or room < _CONNECTIONS_PLENTY):
        log.info("connections_limited", connections_max=room, reason=f"the process may open {soft} files")
    return min(config.limits.connections_max, room)


def net_limits(config: BrokerConfig) -> NetLimits:
    """Those of the sockets, which are called the same there."""
    values: dict[str, Any] = {one.name: getattr(config.limits, one.name) for one in fields(NetLimits)}
    return NetLimits(**{**values, "connections_max": connections_max(config)})
