"""The pytest plugin: `clarion_broker` is a real broker for one test, `clarion_session_broker` one for all of them.

    @pytest.mark.clarion(topics={"orders": 3}, durability="fsync")
    def test_orders_are_kept(clarion_broker): ...

Loaded by pytest wherever Clarion is installed, so nothing heavy is imported before a fixture is used. Where
a test fails, what its brokers said meanwhile stands in the report.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from clarion.testing import EmbeddedBroker

_LINES_MAX = 200  # of each broker, the newest, in a report
_BROKERS: pytest.StashKey[list[EmbeddedBroker]] = pytest.StashKey()
_STARTED: pytest.StashKey[float] = pytest.StashKey()


@pytest.fixture
def clarion_broker(request: pytest.FixtureRequest) -> Iterator[EmbeddedBroker]:
    """A broker of the test's own, empty, on a free port; gone with the test. `@pytest.mark.clarion` configures it."""
    yield from _brokers(request, _marked(request.node))


@pytest.fixture(scope="session")
def clarion_session_broker(request: pytest.FixtureRequest) -> Iterator[EmbeddedBroker]:
    """One broker for the whole run: give each test topics of its own, and put faults into `with` blocks."""
    yield from _brokers(request, {})


@pytest.fixture
def clarion_broker_factory(request: pytest.FixtureRequest) -> Iterator[Callable[..., EmbeddedBroker]]:
    """A function that starts one more broker, with the arguments of `embedded`; all end with the test."""
    from contextlib import ExitStack

    with ExitStack() as stack:

        def start(**options: Any) -> EmbeddedBroker:
            return stack.enter_context(_embedded(request, options))

        yield start


def pytest_addoption(parser: pytest.Parser) -> None:
    words = "how Clarion's brokers in tests acknowledge: page-cache (default, quicker) or fsync"
    choices = ("page-cache", "fsync")
    parser.getgroup("clarion").addoption("--clarion-durability", choices=choices, default=None, help=words)
    parser.addini("clarion_durability", words, default="page-cache")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "clarion(topics=…, settings=…, durability=…, …): arguments of `embedded` for `clarion_broker`"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    item.stash[_STARTED] = time.time()  # noqa: TID251  # compared with the times of log records


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        for broker in _of_item(item):
            lines = [str(event) for event in broker.events if event.seconds >= item.stash[_STARTED]]
            if lines:
                report.sections.append((f"events of {broker!r}", "\n".join(lines[-_LINES_MAX:])))
    return report


def _brokers(request: pytest.FixtureRequest, options: dict[str, Any]) -> Iterator[EmbeddedBroker]:
    with _embedded(request, options) as broker:
        yield broker


def _embedded(request: pytest.FixtureRequest, options: dict[str, Any]) -> EmbeddedBroker:
    from clarion.testing import embedded

    broker = embedded(**{"durability": _durability(request.config), **options})
    request.node.stash.setdefault(_BROKERS, []).append(broker)
    return broker


def _marked(item: pytest.Item) -> dict[str, Any]:
    """The marks of the test and, where it says nothing itself, of its class and module."""
    options: dict[str, Any] = {}
    for mark in reversed(list(item.iter_markers("clarion"))):
        if mark.args:
            raise pytest.UsageError(f"@pytest.mark.clarion takes keyword arguments only, not {mark.args}")
        options.update(mark.kwargs)
    return options


def _durability(config: pytest.Config) -> str:
    return str(config.getoption("--clarion-durability") or config.getini("clarion_durability"))


def _of_item(item: pytest.Item) -> list[EmbeddedBroker]:
    """Its own brokers, and the session's if it uses that."""
    own = item.stash.get(_BROKERS, [])
    uses_shared = "clarion_session_broker" in getattr(item, "fixturenames", ())
    return own + (item.session.stash.get(_BROKERS, []) if uses_shared else [])
