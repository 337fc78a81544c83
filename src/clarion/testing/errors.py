"""What a test is told when its broker is not what the test believes."""

from __future__ import annotations

from collections.abc import Sequence


class BrokerDownError(Exception):
    """The broker does not run, or cannot answer now."""


class BrokerFailedError(Exception):
    """Something went wrong inside the broker that no test has asked for. The first error is the cause."""

    def __init__(self, errors: Sequence[BaseException]) -> None:
        listed = "".join(f"\n- {type(error).__name__}: {error}" for error in errors)
        super().__init__(f"the broker failed {len(errors)} time{'s' * (len(errors) > 1)} during the test:{listed}")
        self.errors = tuple(errors)
        self.__cause__ = errors[0] if errors else None


class InjectedError(OSError):
    """An error of the disk that a test has ordered."""


def is_injected(error: BaseException | None) -> bool:
    """Whether an ordered error is what this one comes from."""
    while error is not None:
        if isinstance(error, InjectedError):
            return True
        error = error.__cause__ or error.__context__
    return False
