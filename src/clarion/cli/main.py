"""`clarion`: the program. Puts the commands together and turns every error into one line and exit status 1."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from typing import Annotated, NoReturn

import typer

from clarion.cli import bench, consume, demo, doctor, dump, group, produce, serve, topic
from clarion.cli.errors import CliError
from clarion.cli.link import BootstrapOption, ClientOption

app = typer.Typer(
    name="clarion",
    help="A durable publish-subscribe broker that speaks Kafka's protocol, and the tools to use one.",
    pretty_exceptions_enable=False,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
serve.add_to(app)
topic.add_to(app)
produce.add_to(app)
consume.add_to(app)
group.add_to(app)
dump.add_to(app)
bench.add_to(app)
doctor.add_to(app)
demo.add_to(app)

# Typer has carried its own copy of Click since 0.2x; this is the base of its usage errors in every version.
_UsageError: type[Exception] = next(each for each in typer.BadParameter.__mro__ if each.__name__ == "ClickException")
_INTERRUPTED = 130  # what shells report after Ctrl-C


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    command = typer.main.get_command(app)
    try:
        status = command.main(args=arguments, prog_name="clarion", standalone_mode=False)
        sys.stdout.flush()
    except CliError as error:
        status = _fail(str(error))
    except _UsageError as error:
        status = _fail(_usage_line(error))
    except (KeyboardInterrupt, typer.Abort):
        status = _INTERRUPTED
    except BrokenPipeError:
        status = _end_of_pipe()
    sys.exit(status if isinstance(status, int) else 0)


@app.callback()
def common(
    context: typer.Context,
    bootstrap: BootstrapOption = None,
    client: ClientOption = None,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    context.obj = {"bootstrap": bootstrap, "client": client}
    if version:
        from importlib.metadata import version as version_of

        print(f"clarion {version_of('clarion-broker')}")
    elif context.invoked_subcommand is None:
        print(context.get_help())


def _fail(message: str) -> int:
    line = " ".join(message.split())
    print(f"clarion: {line}", file=sys.stderr, flush=True)
    return 1


def _usage_line(error: Exception) -> str:
    message = error.format_message() if hasattr(error, "format_message") else str(error)
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "clarion"
    return f"{message.rstrip('.')} (see `{path} --help`)"


def _end_of_pipe() -> int:
    """The reader of our output has gone (`| head`): end in silence, as `cat` does."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 128 + signal.SIGPIPE


if __name__ == "__main__":
    main()
