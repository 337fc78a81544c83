"""The levels of the loggers of this process, for those who want to hear more or less while it runs.

The setting `clarion.log.level` names them by component, `info,net=debug`; Kafka's resource BROKER_LOGGER by logger and
in Kafka's words, and what was said that way lasts until the process ends, or the setting changes.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final

ROOT: Final = "root"
COMPONENTS: Final = ("broker", "cli", "cluster", "gateway", "log", "net", "replication", "world")  # as in `event_log`
COMPONENT_LEVELS: Final = ("debug", "info", "warning", "error")
_EVERYTHING: Final = ""
_USUAL: Final = "info"
LEVELS: Final = {
    "DEBUG": logging.DEBUG,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
    "INFO": logging.INFO,
    "TRACE": 5,  # Python has no name for less than DEBUG
    "WARN": logging.WARNING,
}


def complaint_about(text: str) -> str | None:
    """What is wrong with `info,net=debug`, if anything is."""
    said: set[str] = set()
    for word in text.split(","):
        component, level = _split(word)
        if component not in (_EVERYTHING, *COMPONENTS):
            return f"there is no component {component}, only {', '.join(COMPONENTS)}"
        if level not in COMPONENT_LEVELS:
            return f"{level or 'nothing'} is no level: it must be one of: {', '.join(COMPONENT_LEVELS)}"
        if component in said:
            return f"{component or 'the level of all'} is said twice"
        said.add(component)
    return None


def apply_levels(text: str) -> None:
    """From here on the components have these levels, and those that are not named follow the one without a name."""
    told = dict(map(_split, text.split(",")))
    logging.getLogger().setLevel(told.pop(_EVERYTHING, _USUAL).upper())
    for component in COMPONENTS:
        logging.getLogger(f"clarion.{component}").setLevel(told.get(component, "notset").upper())


def merged(present: str, words: Iterable[str]) -> str:
    """`info,net=debug` with what the words say of single components, or of all the others."""
    told = dict(map(_split, present.split(","))) | dict(map(_split, words))
    everything = told.pop(_EVERYTHING, _USUAL)
    return ",".join([everything, *(f"{component}={level}" for component, level in sorted(told.items()))])


def levels_by_component(text: str) -> dict[str, str]:
    told = dict(map(_split, text.split(",")))
    return {component: told.get(component, told.get(_EVERYTHING, _USUAL)) for component in COMPONENTS}


def _split(word: str) -> tuple[str, str]:
    component, equals, level = word.strip().rpartition("=")
    return component.strip() if equals else _EVERYTHING, level.strip()


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
