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
    lines = [_clean(line) for line in text.splitlines()]
    python_errors = [found for line in lines if (found := _python_error(line))]
    if python_errors:
        return _shortened(python_errors[-1])
    sense = next((line for line in lines if line and not _NOISE.search(line)), text.strip())
    return _shortened(_SPARK_CLASS.sub("", _JAVA_CLASS.sub("", sense)))


def _python_error(line: str) -> str | None:
    found = _PYTHON_ERROR.match(line.removeprefix("pyspark.errors.exceptions.").strip())
    if not found or found[1] in _WRAPPERS or not found[2].strip():
        return None
    message = _SPARK_CLASS.sub("", found[2].strip())
    return message if found[1].startswith(("Definition", "Quarantine", "Lake")) else f"{found[1]}: {message}"


def _clean(line: str) -> str:
    return re.sub(r"\s*SQLSTATE: \w+", "", line).strip()


def _shortened(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _LENGTH_MAX else text[: _LENGTH_MAX - 1] + "…"
