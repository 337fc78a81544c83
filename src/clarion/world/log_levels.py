"""The levels of the loggers of this process, by Kafka's names, for those who want to hear more or less while it runs.

They last until the process ends.
"""

from __future__ import annotations

import logging
from typing import Final

ROOT: Final = "root"
LEVELS: Final = {
    "DEBUG": logging.DEBUG,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
    "INFO": logging.INFO,
    "TRACE": 5,  # Python has no name for less than DEBUG
    "WARN": logging.WARNING,
}


def log_levels() -> dict[str, str]:
    """Every logger with the level that holds for it, its own or an ancestor's, by name."""
    known = logging.getLogger().manager.loggerDict
    names = sorted(name for name, logger in known.items() if isinstance(logger, logging.Logger))
    return {ROOT: _name(logging.getLogger()), **{name: _name(logging.getLogger(name)) for name in names}}


def set_log_level(name: str, level: str | None) -> None:
    """From here on a logger that there is has this level; without one it follows its ancestors."""
    logger = logging.getLogger() if name == ROOT else logging.getLogger(name)
    logger.setLevel(logging.NOTSET if level is None else LEVELS[level])


def _name(logger: logging.Logger) -> str:
    """The mildest of Kafka's levels that lets through no less."""
    effective = logger.getEffectiveLevel()
    by_weight = sorted(LEVELS.items(), key=lambda item: -item[1])
    return next((name for name, weight in by_weight if weight <= effective), "TRACE")
