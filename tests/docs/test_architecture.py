"""The map of the house is the house."""

from __future__ import annotations

from tools.file_map import PAGE, ROOMS, ROOT, first_sentence, with_map


def test_the_file_map_is_what_the_modules_say() -> None:
    page = PAGE.read_text()
    assert with_map(page) == page, "run `make docs`"


def test_every_module_is_on_the_map_and_says_what_it_is() -> None:
    folders = {ROOT / "src/clarion" / room for room in ROOMS}
    for path in (ROOT / "src/clarion").rglob("*.py"):
        assert first_sentence(path), f"{path} does not say what it is"
        assert path.parent in folders or path == ROOT / "src/clarion/__init__.py", f"{path.parent} is not on the map"
