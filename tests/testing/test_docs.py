"""Every example in docs/testing.md and the page beside it runs, and the first names everything that there is."""

import inspect
import re
from pathlib import Path

import pytest

from clarion.testing import EmbeddedBroker, Faults
from clarion.testing import __all__ as public_names

pytest_plugins = ["pytester"]

PAGE = Path(__file__).parents[2] / "docs" / "testing.md"
COMPARED = PAGE.with_name("testing-compared.md")
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def test_every_example_runs(pytester: pytest.Pytester) -> None:
    examples = BLOCK.findall(PAGE.read_text() + COMPARED.read_text())
    assert len(examples) > 15
    pytester.makeini("[pytest]\nasyncio_mode = auto\naddopts = --strict-markers -p no:hypothesispytest\n")
    for number, example in enumerate(examples):
        (pytester.path / f"test_{number:02d}.py").write_text(example)
    result = pytester.runpytest_inprocess("-W", "ignore", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=sum(example.count("def test_") for example in examples))


@pytest.mark.parametrize("kind", [EmbeddedBroker, Faults])
def test_every_method_is_on_the_page(kind: type) -> None:
    page = PAGE.read_text()
    names = [name for name, _ in inspect.getmembers(kind) if not name.startswith("_")]
    inner = {"end_with_life", "is_frozen"}  # for the broker, not for its users
    missing = [name for name in names if name not in inner and not re.search(rf"\b{name}\b", page)]
    assert missing == []


def test_every_public_name_can_be_imported() -> None:
    import clarion.testing

    assert all(getattr(clarion.testing, name) for name in public_names)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = clarion.testing.nothing


def test_every_fixture_and_option_is_on_the_page() -> None:
    source = Path(inspect.getfile(EmbeddedBroker)).with_name("plugin.py").read_text()
    page = PAGE.read_text()
    fixtures = re.findall(r"@pytest\.fixture.*\ndef (\w+)", source)
    options = re.findall(r'add(?:option|ini)\("([^"]+)"', source)
    assert len(fixtures) == 3
    assert all(name in page for name in [*fixtures, *options])
