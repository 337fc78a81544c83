"""`clarion`: the program. Every error becomes one line on stderr and an exit status here, and nowhere else.

0: done · 1: it could not be done · 2: the words themselves were wrong · 130: Ctrl-C · 141: our output's reader left.

`clarion serve …` takes a short way past Typer, whose imports alone cost more than starting a broker.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import NoReturn

from clarion import compiled
from clarion.cli import standard_streams
from clarion.cli.errors import CliError
from clarion.cli.table import clean

_INTERRUPTED = 130  # what shells report after Ctrl-C


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    words = sys.argv[1:] if arguments is None else list(arguments)
    standard_streams.guard()
    compiled.choose(is_command=True)
    sys.exit(_status_of(words))


def _status_of(words: list[str]) -> int:
    try:
        status = _run(words)
        sys.stdout.flush()
        return status
    except standard_streams.OutputError as error:
        standard_streams.give_up_output()
        return _fail(error)
    except CliError as error:
        return _fail(error)
    except KeyboardInterrupt:
        return _INTERRUPTED
    except SystemError as error:  # what the client library makes of Ctrl-C in a callback
        if "returned NULL without setting an exception" in str(error):
            return _INTERRUPTED
        raise
    except BrokenPipeError:  # `| head`: end in silence, as `cat` does
        standard_streams.give_up_output()
        return standard_streams.END_OF_PIPE
    except PermissionError as error:  # of whichever command, on whichever file: somebody else's
        if error.filename is None:
            raise
        return _fail(CliError(f"no permission for {error.filename}; run this as the user to whom it belongs"))


def _run(words: list[str]) -> int:
    if words[:1] == ["serve"] and not {"-h", "--help"} & {*words}:
        from clarion.cli import flags, serve

        serve.run(flags.parse_flags(words[1:]))
        return 0
    from clarion.cli import app

    return app.run(words)


def _fail(error: CliError) -> int:
    line = clean(" ".join(str(error).split()))
    with suppress(OSError):  # stderr is full or gone as well: the status is all that is left to say it with
        print(f"clarion: {line}", file=sys.stderr, flush=True)
    return error.status


if __name__ == "__main__":
    main()
