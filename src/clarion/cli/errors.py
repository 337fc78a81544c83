"""The one exception of this room: something the person at the keyboard can mend, said in one line."""

from __future__ import annotations


class CliError(Exception):
    """Becomes one line on stderr and exit status 1, in one place (`main`)."""

    status = 1


class UsageError(CliError):
    """The words themselves are wrong: exit status 2, as for an option that does not exist."""

    status = 2
