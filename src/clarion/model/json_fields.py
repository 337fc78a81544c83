"""A plain dict from outside (JSON) taken apart at the door: each mistake is a KafkaError that says what to write."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from clarion.model.durations import parse_duration_ms, write_duration
from clarion.model.errors import ErrorCode, KafkaError


class JsonFields:
    """A dict from outside, taken apart field by field; what nobody asked for is a mistake."""

    def __init__(self, data: object, what: str) -> None:
        if not isinstance(data, Mapping):
            raise refused(f"{what} is an object with names and values")
        self._data = data
        self._what = what
        self._asked: set[str] = set()

    def get(self, name: str) -> Any:
        self._asked.add(name)
        return self._data.get(name)

    def check_all_known(self) -> None:
        for name in self._data:
            if name not in self._asked:
                known = ", ".join(sorted(self._asked))
                raise refused(f"{self._what} has no field {str(name)[:100]!r}; it has {known}")

    def text(self, name: str) -> str | None:
        value = self.get(name)
        if value is not None and not isinstance(value, str):
            raise refused(f"{name} is a text")
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        value = self.get(name)
        if value is None:
            return ()
        if isinstance(value, str) or not isinstance(value, list | tuple):
            raise refused(f'{name} is a list, for example ["orders", "payments"]')
        if not all(isinstance(one, str) for one in value):
            raise refused(f"{name} is a list of texts")
        return tuple(value)

    def texts_by_name(self, name: str) -> tuple[tuple[str, str], ...]:
        value = self.get(name)
        if value is None:
            return ()
        if not isinstance(value, Mapping) or not all(
            isinstance(key, str) and isinstance(one, str) for key, one in value.items()
        ):
            raise refused(f'{name} is an object of texts, for example {{"x-team": "billing"}}')
        return tuple(value.items())

    def number(self, name: str, default: int) -> int:
        value = self.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int):
            raise refused(f"{name} is a whole number")
        return value

    def truth(self, name: str, default: bool) -> bool:
        value = self.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise refused(f"{name} is true or false")
        return value

    def duration(self, name: str, default: Any) -> Any:
        value = self.get(name)
        if value is None:
            return default
        return _read_duration(name, value)

    def moment(self, name: str) -> int:
        value = self.text(name)
        try:
            return 0 if value is None else round(datetime.fromisoformat(value).timestamp() * 1_000)
        except (ValueError, OverflowError):
            raise refused(f"{name} is a time such as 2026-11-16T12:00:00Z") from None


def _read_duration(name: str, value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    try:
        return parse_duration_ms(str(value))
    except ValueError as error:
        raise refused(f"{name}: {error}") from None


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise refused(f"{name} is {' or '.join(choices)}, not {value[:100]!r}")


def check_bounds(name: str, value: int | None, bounds: tuple[int, int], *, in_ms: bool = False) -> None:
    least, most = bounds
    assert value is not None
    if not least <= value <= most:
        said = (write_duration(least), write_duration(most)) if in_ms else (str(least), str(most))
        raise refused(f"{name} is from {said[0]} to {said[1]}")


def refused(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, message)
