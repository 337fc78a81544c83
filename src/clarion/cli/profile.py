"""`clarion profile`: brokers by name, so that an address and its TLS files are typed once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from clarion.cli import completion
from clarion.cli.errors import CliError, UsageError
from clarion.cli.link import BootstrapOption, JsonOption, check_addresses, client_settings
from clarion.cli.profiles import Profile, Profiles, check_profile_name, profiles_file, read_profiles, write_profiles
from clarion.cli.table import Column, clean, show_json, show_rows

commands = typer.Typer(help="Brokers by name: add, list, use and remove connection profiles.")

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The profile's name.")]
_SECRET = "password"


def add_to(app: typer.Typer) -> None:
    app.add_typer(commands, name="profile")


@commands.command()
def add(
    context: typer.Context,
    name: NameArgument,
    bootstrap: BootstrapOption = None,
    tls: Annotated[bool, typer.Option("--tls", help="Speak TLS, trusting the machine's own authorities.")] = False,
    tls_ca: Annotated[
        Path | None, typer.Option("--tls-ca", metavar="FILE", help="Speak TLS, trusting this authority (PEM).")
    ] = None,
    tls_certificate: Annotated[
        Path | None, typer.Option("--tls-certificate", metavar="FILE", help="Our own certificate (PEM).")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option("--tls-key", metavar="FILE", help="Its private key (PEM).")] = None,
    use_it: Annotated[bool, typer.Option("--use", help="Use it from now on.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a profile of that name.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Add a profile: an address, TLS, and whatever `clarion -X NAME=VALUE profile add` says.

    The first one is used at once.

    Examples:

        clarion profile add local --bootstrap 127.0.0.1:9092
        clarion -X client.id=me profile add test --bootstrap 10.0.0.7:9093 --tls --use
    """
    check_profile_name(name)
    common: Mapping[str, Any] = context.find_root().obj or {}
    address = bootstrap or common.get("bootstrap")
    if address is None:
        raise UsageError("say where it is, with --bootstrap HOST:PORT")
    check_addresses(address)
    files = {"ssl.ca.location": tls_ca, "ssl.certificate.location": tls_certificate, "ssl.key.location": tls_key}
    settings = {**_tls_settings(tls, files), **client_settings(common.get("client"))}
    path = profiles_file()
    known = read_profiles(path)
    if name in known.by_name and not force:
        raise CliError(f"there is a profile {name} already; replace it with --force")
    current = name if use_it or known.current is None else known.current
    write_profiles(path, Profiles({**known.by_name, name: Profile(address, settings)}, current))
    if as_json:
        show_json({"profile": name, "file": str(path), "current": current == name})
    else:
        print(f"added {name}" + (", in use now" if current == name else f"; use it with: clarion profile use {name}"))


@commands.command("list")
def list_(as_json: JsonOption = False) -> None:
    """List profiles; a star marks the one in use.

    Example:

        clarion profile list
    """
    known = read_profiles(profiles_file())
    rows = [_row(name, profile, known.current) for name, profile in sorted(known.by_name.items())]
    columns = [
        Column("current", "", lambda is_current: "*" if is_current else ""),
        Column("profile", "PROFILE", style="cyan"),
        Column("bootstrap", "BOOTSTRAP"),
        Column("settings", "SETTINGS", lambda settings: " ".join(f"{key}={settings[key]}" for key in settings)),
    ]
    show_rows(rows, columns, as_json=as_json, none="no profiles yet; add one with: clarion profile add NAME -b ADDRESS")


@commands.command()
def use(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[NAME]", help="The profile; none: use none.", autocompletion=completion.profile_names),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Use a profile from now on, where neither --profile nor --bootstrap says otherwise; without a name, none.

    Example:

        clarion profile use
    """
    path = profiles_file()
    known = read_profiles(path)
    if name is not None:
        known.named(name)
    write_profiles(path, replace(known, current=name))
    if as_json:
        show_json({"current": name})
    else:
        print(f"using {clean(name)}" if name is not None else "using no profile")


@commands.command()
def remove(
    names: Annotated[
        list[str],
        typer.Argument(metavar="NAME…", help="One or more profiles.", autocompletion=completion.profile_names),
    ],
    as_json: JsonOption = False,
) -> None:
    """Remove profiles.

    Example:

        clarion profile add old -b 127.0.0.1:9092 && clarion profile remove old
    """
    path = profiles_file()
    known = read_profiles(path)
    for name in names:
        known.named(name)
    left = {name: profile for name, profile in known.by_name.items() if name not in names}
    write_profiles(path, Profiles(left, known.current if known.current in left else None))
    if as_json:
        show_json([{"profile": name, "removed": True} for name in names])
    else:
        for name in names:
            print(f"removed {clean(name)}")


def _tls_settings(tls: bool, files: Mapping[str, Path | None]) -> dict[str, str]:
    given = {setting: file for setting, file in files.items() if file is not None}
    for file in given.values():
        if not file.is_file():
            raise CliError(f"cannot read {file}: there is no such file")
    if ("ssl.certificate.location" in given) != ("ssl.key.location" in given):
        raise UsageError("--tls-certificate and --tls-key belong together: give both")
    if not tls and not given:
        return {}
    return {"security.protocol": "ssl", **{setting: str(file.resolve()) for setting, file in given.items()}}


def _row(name: str, profile: Profile, current: str | None) -> dict[str, Any]:
    shown = {key: "***" if _SECRET in key else value for key, value in profile.settings.items()}
    return {"profile": name, "current": name == current, "bootstrap": profile.bootstrap, "settings": shown}
