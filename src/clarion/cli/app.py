"""The Typer application: every command under its name, and the options they share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from clarion.cli import bench, consume, demo, doctor, dump, group, pipeline, produce, serve_command, topic
from clarion.cli.errors import CliError
from clarion.cli.link import BootstrapOption, ClientOption

app = typer.Typer(
    name="clarion",
    help="A durable publish-subscribe broker that speaks Kafka's protocol, and the tools to use one.",
    pretty_exceptions_enable=False,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for _command in (serve_command, topic, produce, consume, group, pipeline, dump, bench, doctor, demo):
    _command.add_to(app)

# Typer carries its own copy of Click now; this is the base of its usage errors in every version.
_UsageError: type[Exception] = next(each for each in typer.BadParameter.__mro__ if each.__name__ == "ClickException")


def run(arguments: Sequence[str]) -> int:
    """Run a command line; the exit status, or CliError for whatever the person who typed it can mend."""
    command = typer.main.get_command(app)
    try:
        status = command.main(args=list(arguments), prog_name="clarion", standalone_mode=False)
    except _UsageError as error:
        raise CliError(_usage_line(error)) from error
    except typer.Abort as error:
        raise KeyboardInterrupt from error
    return status if isinstance(status, int) else 0


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

        from clarion.compiled import in_words

        print(f"clarion {version_of('clarion-broker')} ({in_words()})")
    elif context.invoked_subcommand is None:
        print(context.get_help())


def _usage_line(error: Exception) -> str:
    message = error.format_message() if hasattr(error, "format_message") else str(error)
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "clarion"
    return f"{message.rstrip('.')} (see `{path} --help`)"
