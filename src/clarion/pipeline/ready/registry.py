"""The ready-made pipelines by name, and their options as a command line writes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

from clarion.pipeline.definition import DefinitionError, Pipeline
from clarion.pipeline.field_list import why_no_fields


@dataclass(frozen=True, slots=True)
class Option:
    """`--name VALUE`; a switch has no value and also `--no-name`."""

    name: str
    help: str
    parameter: str  # of the function that makes the pipeline
    read: Callable[[str], Any] = str
    is_required: bool = False
    is_repeatable: bool = False
    is_switch: bool = False
    default: str = ""  # in words


@dataclass(frozen=True, slots=True)
class Ready:
    name: str
    help: str
    options: tuple[Option, ...]
    is_batch: bool = False  # it ends when everything is done; there is no stream of it

    def build(self, **parameters: Any) -> Pipeline:
        function = getattr(import_module(f"clarion.pipeline.ready.{self.name}"), self.name)
        made = function(**parameters)
        assert isinstance(made, Pipeline)
        return made


def from_words(name: str, words: Sequence[str]) -> Pipeline:
    """`archive`, ["--topic", "events", "--table", "lake/events"] → the pipeline; DefinitionError in plain words."""
    ready = REGISTRY[name]
    known = {each.name: each for each in ready.options}
    parameters: dict[str, Any] = {}
    rest = list(words)
    while rest:
        option, value = _next(ready, known, rest)
        if option.is_repeatable:
            parameters.setdefault(option.parameter, []).append(value)
        elif option.parameter in parameters:
            raise DefinitionError(f"{name}: --{option.name} is given twice")
        else:
            parameters[option.parameter] = value
    for each in ready.options:
        if each.is_required and each.parameter not in parameters:
            raise DefinitionError(f"{name}: --{each.name} is missing: {each.help}")
    return ready.build(**{key: _settled(value) for key, value in parameters.items()})


def _next(ready: Ready, known: Mapping[str, Option], rest: list[str]) -> tuple[Option, Any]:
    """Take one option, and its value, off the words."""
    word, equals, value = rest.pop(0).partition("=")
    name = word.removeprefix("--")
    switched = name.removeprefix("no-")
    if switched in known and known[switched].is_switch and not equals:
        return known[switched], switched == name
    option = known.get(name)
    if option is None or not word.startswith("--") or option.is_switch:
        raise DefinitionError(f"{ready.name}: {word} is no option; it has {', '.join(f'--{each}' for each in known)}")
    if not equals:
        if not rest:
            raise DefinitionError(f"{ready.name}: {word} needs a value: {option.help}")
        value = rest.pop(0)
    try:
        return option, option.read(value)
    except ValueError as reason:
        raise DefinitionError(f"{ready.name}: {word} {value}: {reason}") from None


def _settled(value: Any) -> Any:
    """Quantiles of several fields are one mapping; one topic alone may be a pattern."""
    if isinstance(value, list) and isinstance(value[0], dict):
        ranks: dict[str, list[float]] = {}
        for each in value:
            for name, more in each.items():
                ranks.setdefault(name, []).extend(more)
        return ranks
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def _quantiles(text: str) -> dict[str, list[float]]:
    """`latency_ms:0.5,0.99`"""
    name, colon, ranks = text.partition(":")
    try:
        return {name: [float(each) for each in ranks.split(",")]} if colon else _refuse()
    except ValueError:
        raise ValueError("write FIELD:RANK,RANK like latency_ms:0.5,0.99") from None


def _fields(text: str) -> str:
    """Looked through here, too, so that the answer names the option and not the function's parameter."""
    if text != "infer" and (reason := why_no_fields(text)):
        raise ValueError(reason)
    return text


def _refuse() -> dict[str, list[float]]:
    raise ValueError


def _option(name: str, help: str, parameter: str | None = None, **more: Any) -> Option:
    return Option(name, help, parameter or name.replace("-", "_"), **more)


_TOPIC: Final = _option("topic", "the topic; repeatable, or a pattern", "topics", is_required=True, is_repeatable=True)
_NAME: Final = _option("name", "what the pipeline is called", default="its kind and its topic")
_TRIGGER: Final = _option("trigger", "time between batches, e.g. '10 seconds'")
# On the command line `--json` asks for reports as JSON.
_JSON: Final = _option(
    "fields", "the fields of the JSON values as DDL, or `infer`", "json", read=_fields, default="raw bytes"
)

REGISTRY: Final[dict[str, Ready]] = {
    each.name: each
    for each in (
        Ready(
            "archive",
            "Topics into a lake table, every message once.",
            (
                _TOPIC,
                _option("table", "the table's folder", "table_path", is_required=True),
                _JSON,
                _option("by", "folders by `date`, `hour` or `none`", default="date"),
                _option("keep-value", "keep the bytes beside the JSON's fields", is_switch=True, default="yes"),
                _option("hold", "let the broker keep what is not archived yet", is_switch=True, default="yes"),
                _option("compact-every", "batches between looks at small files", read=int, default="30"),
                _TRIGGER,
                _NAME,
            ),
        ),
        Ready(
            "replay",
            "An archive, or a range of its time, back into a topic.",
            (
                _option("table", "the archive's folder", "table_path", is_required=True),
                _option("to-topic", "the topic that gets the messages", "to", is_required=True),
                _option("since", "of the messages' own time: 2026-11-01, 2026-11-01T12:00+01:00"),
                _option("until", "the same; not included"),
                _option("only", "of an archive with several topics, the one to replay"),
                _option("rate", "messages per second at most", read=float, default="as fast as it goes"),
                _option("keep-partitions", "into the partitions they came from", is_switch=True, default="by key"),
                _option("keep-timestamps", "with the time they had", is_switch=True, default="yes"),
                _option("partitions", "how many the topic has if it is made", read=int),
                _NAME,
            ),
            is_batch=True,
        ),
        Ready(
            "rollup",
            "Counts, sums and quantiles of JSON fields per window of time.",
            (
                _TOPIC,
                _option("every", "the window's length, e.g. '1 minute'", is_required=True),
                _option("slide", "how often a window begins", default="one after the other"),
                _option("by", "a field whose values are counted apart; repeatable", is_repeatable=True),
                _option("sum", "a field that is added up; repeatable", is_repeatable=True),
                _option("quantiles", "FIELD:RANK,RANK; repeatable", read=_quantiles, is_repeatable=True),
                _option("time", "the field with the event's time", default="the message's timestamp"),
                _option("delay", "how late a message may be", default="1 minute"),
                _option("to-topic", "the topic that gets a message per window", "to"),
                _option("table", "the table that gets a row per window", "table_path"),
                _option("key", "the field that is the key of those messages", default="the first --by"),
                _TRIGGER,
                _NAME,
            ),
        ),
        Ready(
            "latest",
            "The last value per key, as a table kept by merge.",
            (_TOPIC, _option("table", "the table's folder", "table_path", is_required=True), _JSON, _TRIGGER, _NAME),
        ),
    )
}
