"""One line out of Spark's pages: what went wrong, in the words of whoever knew."""

from __future__ import annotations

import re

_LENGTH_MAX = 400
_PYTHON_ERROR = re.compile(r"^(?:[\w.]+\.)?(\w*(?:Error|Exception|Interrupt|Refused)): ?(.*)$")
_NOISE = re.compile(r"^at |^File |^Traceback|^\^+$|^An error occurred while calling |^: \S+$")
_JAVA_CLASS = re.compile(r"^(?:Caused by: |: )?(?:[a-z]\w*\.)+[A-Z]\w*: ")
_SPARK_CLASS = re.compile(r"^\[[A-Z0-9_.]+\] ")
_WRAPPERS = ("Py4JException", "PythonException", "Py4JJavaError", "StreamingQueryException", "SparkException")


def plain_reason(error: BaseException | str) -> str:
    """The innermost Python error that the text tells of; else its first line of sense."""
    text = error if isinstance(error, str) else str(error) or type(error).__name__
    if found := innermost(text):
        name, message = found
        return _shortened(message if name.startswith(("Definition", "Quarantine", "Lake")) else f"{name}: {message}")
    lines = [_clean(line) for line in text.splitlines()]
    sense = next((line for line in lines if line and not _NOISE.search(line)), text.strip())
    return _shortened(_SPARK_CLASS.sub("", _JAVA_CLASS.sub("", sense)))


def innermost(text: str) -> tuple[str, str] | None:
    """The class and the message of the innermost Python error that a text tells of."""
    found = [each for line in text.splitlines() if (each := _python_error(_clean(line)))]
    return found[-1] if found else None


def _python_error(line: str) -> tuple[str, str] | None:
    found = _PYTHON_ERROR.match(line.removeprefix("pyspark.errors.exceptions.").strip())
    if not found or found[1] in _WRAPPERS or not found[2].strip():
        return None
    return found[1], _SPARK_CLASS.sub("", found[2].strip())


def _clean(line: str) -> str:
    return re.sub(r"\s*SQLSTATE: \w+", "", line).strip()


def _shortened(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _LENGTH_MAX else text[: _LENGTH_MAX - 1] + "…"
