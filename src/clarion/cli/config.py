"""`clarion config check`: what is wrong with a file of settings, before a broker is started or reloaded with it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from clarion.cli.errors import UsageError
from clarion.cli.link import JsonOption
from clarion.cli.table import clean, show_json
from clarion.cli.units import plural

commands = typer.Typer(help="Check a broker's settings.")


def add_to(app: typer.Typer) -> None:
    app.add_typer(commands, name="config")


@commands.command()
def check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The settings, as TOML.")],
    as_json: JsonOption = False,
) -> None:
    """Check the file that `serve --config` will read: every problem in one line, and status 1 if there is any.

    Certificates and keys that it names are loaded. Nothing is started or changed.

    Example:

        echo 'log.retention.ms = "7d"' > my.toml && clarion config check my.toml
    """
    from clarion.cli.settings import check_file

    if not file.is_file():
        raise UsageError(f"{file} is a folder, not a file" if file.is_dir() else f"{file}: there is no such file")
    found = check_file(str(file))
    if as_json:
        told = {"problems": list(found.problems), "remarks": list(found.remarks), "renamed": dict(found.renamed)}
        show_json({"file": str(file), **told})
    else:
        renamed = (f"{file}: {old} is called {new} now" for old, new in found.renamed.items())
        for line in (*found.problems, *found.remarks, *renamed):
            print(clean(line))
        if not found.problems:
            print(f"{clean(str(file))}: {plural(found.settings, 'setting')}, nothing wrong")
    if found.problems:
        raise typer.Exit(1)
