"""Connection profiles: addresses and client settings under a name, in a file of the user's own.

`~/.config/clarion/profiles.toml` (or below `XDG_CONFIG_HOME`), open to its owner alone: a setting may be a password.

current = "production"

[profiles.production]
bootstrap = "kafka.example:9093"
"security.protocol" = "ssl"
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from clarion.cli.errors import CliError, UsageError

ENVIRONMENT = "CLARION_PROFILE"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
_ADDRESS = "bootstrap"


@dataclass(frozen=True, slots=True)
class Profile:
    bootstrap: str
    settings: Mapping[str, str] = field(default_factory=dict)  # librdkafka's


@dataclass(frozen=True, slots=True)
class Profiles:
    """The whole file."""

    by_name: Mapping[str, Profile] = field(default_factory=dict)
    current: str | None = None

    def named(self, name: str) -> Profile:
        from clarion.cli.usage_errors import did_you_mean

        if name not in self.by_name:
            hint = did_you_mean(name, self.by_name)
            raise CliError(f"there is no profile {name}{hint}; see them with: clarion profile list")
        return self.by_name[name]


def profiles_file(environment: Mapping[str, str] | None = None) -> Path:
    told = os.environ if environment is None else environment
    base = told.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return Path(base) / "clarion" / "profiles.toml"


def check_profile_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise UsageError(f"{name!r} is not a name for a profile: letters, digits, '.', '_' and '-', at most 63")


def read_profiles(path: Path) -> Profiles:
    """What the file says; nothing where there is none."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return Profiles()
    except OSError as error:
        raise CliError(f"cannot read the profiles in {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise CliError(f"{path} is not TOML: {error}") from error
    return _parsed(text, path)


def write_profiles(path: Path, profiles: Profiles) -> None:
    """Whole or not at all, and never readable by others."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(_toml(profiles))
        os.replace(aside, path)
    except OSError as error:
        raise CliError(f"cannot write the profiles to {path}: {error.strerror}") from error


def _parsed(text: str, path: Path) -> Profiles:
    import tomllib

    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise CliError(f"{path} is not TOML: {error}") from error
    tables = content.get("profiles", {})
    if not isinstance(tables, dict):
        raise CliError(f"{path}: profiles must be tables: [profiles.NAME]")
    found = {name: _profile(name, table, path) for name, table in tables.items()}
    current = content.get("current")
    return Profiles(found, current if isinstance(current, str) else None)


def _profile(name: str, table: object, path: Path) -> Profile:
    if not isinstance(table, dict) or not isinstance(table.get(_ADDRESS), str):
        raise CliError(f'{path}: [profiles.{name}] must say {_ADDRESS} = "HOST:PORT"')
    settings = {key: value for key, value in table.items() if key != _ADDRESS}
    for key, value in settings.items():
        if not isinstance(value, str):
            raise CliError(f'{path}: [profiles.{name}] {key} must be a text, in quotes: "{value}"')
    return Profile(table[_ADDRESS], settings)


def _toml(profiles: Profiles) -> str:
    """JSON's strings are TOML's, too."""
    lines = [f"current = {_quoted(profiles.current)}", ""] if profiles.current is not None else []
    for name, profile in sorted(profiles.by_name.items()):
        pairs = {_ADDRESS: profile.bootstrap, **profile.settings}
        lines += [f"[profiles.{_quoted(name)}]", *(f"{_quoted(key)} = {_quoted(pairs[key])}" for key in pairs), ""]
    return "\n".join(lines)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
