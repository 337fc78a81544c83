"""What every folder may use: one shared broker process, and names that no other test has."""

import itertools
import os
import re
import signal
from collections.abc import Generator, Iterator
from pathlib import Path

import hypothesis
import pytest

from clarion import compiled
from tests import postgres
from tests.patches import refuse_patches_of_compiled_code
from tests.servers import ClarionProcess, KafkaProcess, start_peer

_numbers = itertools.count(1)

# Hypothesis would call an example a failure because the machine was busy for a fifth of a second. A test run draws the
# same examples every time, so that a change is judged by what it changes; campaigns draw fresh ones.
IS_FRESH = os.environ.get("CLARION_FRESH_EXAMPLES") == "1"
hypothesis.settings.register_profile("shared machines", deadline=None, derandomize=not IS_FRESH)
hypothesis.settings.load_profile("shared machines")

# Plain Python, in this process and in the brokers that it starts, unless CLARION_COMPILED=1 was said.
os.environ.setdefault(compiled.VARIABLE, "0")
if compiled.in_use():
    refuse_patches_of_compiled_code()

# What runs in the background of a shell ignores SIGINT, and so would every process that a test starts and interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The simulation replaces rules of the hot path one by one, which compiled code does not notice."""
    for item in items:
        if item.nodeid.startswith("tests/sim/"):
            item.add_marker("uncompiled")
        if compiled.in_use() and item.get_closest_marker("uncompiled"):
            item.add_marker(pytest.mark.skip("it patches what is compiled: CLARION_COMPILED=0"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failure shows what the broker had to say at that time."""
    report = yield
    if report.failed:
        for name in ("own_server", "shared_server"):
            if server := getattr(item, "funcargs", {}).get(name):
                report.sections.append((f"the last words of {name}", server.stderr[-4000:]))
    return report


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClarionProcess | KafkaProcess]:
    """One broker for all scenarios that do not stop it; at the end it must still be alive, and stop when asked."""
    server = start_peer(tmp_path_factory.mktemp("shared") / "data")
    yield server
    assert server.is_running, f"the shared broker died\n{server.stderr[-8000:]}"
    assert server.terminate() == 0


@pytest.fixture(scope="session")
def bootstrap(shared_server: ClarionProcess | KafkaProcess) -> str:
    return shared_server.bootstrap


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[ClarionProcess | KafkaProcess]:
    """A broker for this test alone, which may kill and restart it."""
    server = start_peer(tmp_path / "data")
    yield server
    server.close()


@pytest.fixture
def unique(request: pytest.FixtureRequest) -> str:
    """A name for this test's topics and groups: readable, and taken by nobody else."""
    words = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower().removeprefix("test_")).strip("-")
    return f"{words[:60]}-{os.getpid()}-{next(_numbers)}"


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[postgres.PostgresProcess]:
    if not postgres.is_installed():
        pytest.skip(postgres.MISSING)
    server = postgres.PostgresProcess()
    try:
        server.start()
        yield server
    finally:
        server.remove()
