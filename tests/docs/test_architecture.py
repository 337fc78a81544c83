"""The map of the house is the house."""

from __future__ import annotations

import re

from tools.file_map import PAGE, ROOMS, ROOT, file_map, first_sentence

SOURCES = ROOT / "src/clarion"
ARCHITECTURE = (ROOT / "ARCHITECTURE.md").read_text()
SOURCE_LINES_MAX = 400
TEST_LINES_MAX = 500


def test_the_list_of_files_is_what_the_modules_say() -> None:
    assert PAGE.read_text() == file_map(), "run `make docs`"


def test_every_module_is_on_the_map_and_says_what_it_is() -> None:
    folders = {SOURCES / room for room in ROOMS}
    for path in SOURCES.rglob("*.py"):
        assert first_sentence(path), f"{path} does not say what it is"
        assert path.parent in folders or path == SOURCES / "__init__.py", f"{path.parent} is not on the map"


def test_no_file_is_longer_than_a_reader_can_keep_in_mind() -> None:
    """What grows beyond it has a second thought in it, which wants a file of its own."""
    generated = SOURCES / "wire/tables"
    long = [
        str(path.relative_to(ROOT))
        for folder, lines_max in ((SOURCES, SOURCE_LINES_MAX), (ROOT / "tests", TEST_LINES_MAX))
        for path in folder.rglob("*.py")
        if path.parent != generated and len(path.read_text().splitlines()) > lines_max
    ]
    assert long == []


def test_the_architecture_is_read_in_three_screens() -> None:
    assert len(ARCHITECTURE.splitlines()) <= 150


def test_what_the_architecture_names_is_there() -> None:
    named = set(re.findall(r"`((?:" + "|".join(room for room in ROOMS if room) + r")/[a-z_/0-9.]+)`", ARCHITECTURE))
    assert len(named) > 15
    missing = [name for name in named if not (SOURCES / name).exists() and not (SOURCES / f"{name}.py").exists()]
    assert not missing
