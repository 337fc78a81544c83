"""The Typer application: every command under its name, and the options they share."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from clarion.cli import (
    backup,
    bench,
    cluster,
    completion,
    config,
    consume,
    doctor,
    dump,
    group,
    help_page,
    log_level,
    pipeline,
    produce,
    profile,
    serve_command,
    subscription,
    top,
    topic,
)
from clarion.cli.demo import command as demo
from clarion.cli.errors import UsageError
from clarion.cli.link import BootstrapOption, ClientOption, ProfileOption
from clarion.cli.usage_errors import sentence

app = typer.Typer(
    name="clarion",
    help="A durable publish-subscribe broker that speaks Kafka's protocol, and the tools to use one.",
    pretty_exceptions_enable=False,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for _command in (
    serve_command,
    top,
    topic,
    produce,
    consume,
    group,
    subscription,
    cluster,
    profile,
    config,
    log_level,
    pipeline,
    dump,
    backup,
    bench,
    doctor,
    demo,
):
    _command.add_to(app)

# Typer carries its own copy of Click now; these are its exceptions in every version.
_UsageError: type[Exception] = next(each for each in typer.BadParameter.__mro__ if each.__name__ == "ClickException")


def run(arguments: Sequence[str]) -> int:
    """Run a command line; the exit status, or CliError for whatever the person who typed it can mend.

    Not by Click's own `main`, which makes exit status 1 of a closed pipe.
    """
    command = typer.main.get_command(app)
    help_page.put_into(command)
    try:
        if asked := os.environ.get(completion.VARIABLE):
            return _complete(command, asked)
        with command.make_context("clarion", list(arguments)) as context:
            command.invoke(context)
    except _UsageError as error:
        raise UsageError(sentence(error)) from error
    except typer.Abort as error:
        raise KeyboardInterrupt from error
    except typer.Exit as end:
        return int(end.exit_code)
    return 0


def _complete(command: Any, instruction: str) -> int:
    told = completion.answer(command, instruction)
    if told is None:
        command.main(args=[], prog_name="clarion")
    print(told)
    return 0


@app.callback()
def common(
    context: typer.Context,
    bootstrap: BootstrapOption = None,
    profile_name: ProfileOption = None,
    client: ClientOption = None,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    context.obj = {"bootstrap": bootstrap, "profile": profile_name, "client": client}
    if version:
        from importlib.metadata import version as version_of

        from clarion.compiled import in_words

        print(f"clarion {version_of('clarion-broker')} ({in_words()})")
    elif context.invoked_subcommand is None:
        print(context.get_help())
