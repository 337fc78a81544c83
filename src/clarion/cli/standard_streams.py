"""Standard output and standard error as a program meets them: closed, full, or with a reader that has gone.

`print` says of a full disk only `OSError: No space left on device`, which could have come from anywhere. Here the
stream itself says that it was the output, so that one line on stderr can.
"""

from __future__ import annotations

import io
import os
import sys
from typing import Any, Final, TextIO, cast

from clarion.cli.errors import CliError

END_OF_PIPE: Final = 141  # 128 + SIGPIPE: what a shell reports of `cat` whose reader has gone
_STDOUT: Final = 1


class OutputError(CliError):
    """What the command had to say could not be written."""


def guard() -> None:
    """Make both streams usable whatever the shell did with them."""
    if sys.stdout is None:
        sys.stdout = _nowhere()  # `>&-`; and no socket may become descriptor 1
    elif sys.stdout is sys.__stdout__:
        sys.stdout = _telling(cast(TextIO, sys.stdout))
    if sys.stderr is None:
        sys.stderr = _nowhere()


def give_up_output() -> None:
    """What is still in the buffer goes nowhere: Python's own flush at the end must not fail once more."""
    if isinstance(getattr(sys.stdout.buffer, "raw", None), _Output):
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), _STDOUT)


class _Output(io.FileIO):
    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise OutputError(f"cannot write to standard output: {error.strerror}") from error


def _telling(stream: TextIO) -> TextIO:
    raw = _Output(_STDOUT, "wb", closefd=False)
    buffered = io.BufferedWriter(raw)
    return io.TextIOWrapper(
        buffered, encoding=stream.encoding, errors=stream.errors, line_buffering=bool(stream.line_buffering)
    )


def _nowhere() -> TextIO:
    return open(os.devnull, "w", encoding="utf-8")
