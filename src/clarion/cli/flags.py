"""The flags of `clarion serve`: which setting each one sets, and how a command line is taken apart.

Most settings have none and need none: `--set NAME=VALUE` sets any.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from clarion.cli.errors import UsageError

FLAGS: Final[Mapping[str, str]] = {
    "--data-dir": "log.dirs",
    "--listen": "listeners",
    "--advertise": "advertised.listeners",
    "--tls-certificate": "clarion.tls.certificate",
    "--tls-key": "clarion.tls.key",
    "--tls-client-ca": "clarion.tls.client.ca",
    "--insecure": "clarion.insecure",
    "--durability": "clarion.durability",
    "--http": "clarion.http.listen",
    "--metrics": "clarion.http.listen",  # what it was called when there was nothing else on that port
    "--log-format": "clarion.log.format",
    "--log-level": "clarion.log.level",
    "--node-id": "node.id",
    "--cluster": "clarion.cluster",
    "--rack": "broker.rack",
}
SWITCHES: Final = frozenset({"--insecure"})  # take no value
REPEATABLE: Final = frozenset({"--listen", "--advertise", "--set"})


def parameter(flag: str) -> str:
    """The name under which the command's function receives a flag."""
    return flag.removeprefix("--").replace("-", "_")


def parse_flags(words: list[str]) -> dict[str, Any]:
    """What was said, by parameter name. (`serve_command` shows the same flags as help.)

    By hand, because argparse and what it imports take longer than opening an empty data directory.
    """
    known = (*FLAGS, "--brokers", "--config", "--set")
    found: dict[str, Any] = {parameter(flag): False if flag in SWITCHES else None for flag in known}
    left = iter(words)
    for word in left:
        flag, equals, value = word.partition("=")
        if flag not in known:
            raise _flags_error(f"there is no option {flag}{_nearest(flag)}")
        name = parameter(flag)
        if flag in SWITCHES:
            if equals:
                raise _flags_error(f"{flag} takes no value")
            found[name] = True
            continue
        value = value if equals else next(left, "--")
        if not equals and value.startswith("--"):
            raise _flags_error(f"{flag} needs a value")
        found[name] = [*(found[name] or ()), value] if flag in REPEATABLE else value
    return found


def _nearest(flag: str) -> str:
    from clarion.cli.usage_errors import did_you_mean

    return did_you_mean(flag, (*FLAGS, "--config", "--set"))


def _flags_error(reason: str) -> UsageError:
    return UsageError(f"{reason} (see `clarion serve --help`)")
