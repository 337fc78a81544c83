"""`clarion`: the program. Every error becomes one line on stderr and exit status 1 here, and nowhere else.

`clarion serve …` takes a short way past Typer, whose imports alone cost more than starting a broker.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

from clarion import compiled
from clarion.cli.errors import CliError
from clarion.cli.table import clean

_INTERRUPTED = 130  # what shells report after Ctrl-C


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    words = sys.argv[1:] if arguments is None else list(arguments)
    compiled.choose(is_command=True)
    try:
        status = _run(words)
        sys.stdout.flush()
    except CliError as error:
        _fail(str(error))
        status = error.status
    except KeyboardInterrupt:
        status = _INTERRUPTED
    except BrokenPipeError:
        status = _end_of_pipe()
    sys.exit(status)


def _run(words: list[str]) -> int:
    if words[:1] == ["serve"] and not {"-h", "--help"} & {*words}:
        from clarion.cli import flags, serve

        serve.run(flags.parse_flags(words[1:]))
        return 0
    from clarion.cli import app

    return app.run(words)


def _fail(message: str) -> None:
    line = clean(" ".join(message.split()))
    print(f"clarion: {line}", file=sys.stderr, flush=True)


def _end_of_pipe() -> int:
    """The reader of our output has gone (`| head`): end in silence, as `cat` does."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 128 + signal.SIGPIPE


if __name__ == "__main__":
    main()
