"""The map of the house is the house."""

from __future__ import annotations

import re

from tools.file_map import PAGE, ROOMS, ROOT, file_map, first_sentence

SOURCES = ROOT / "src/clarion"
ARCHITECTURE = (ROOT / "ARCHITECTURE.md").read_text()


def test_the_list_of_files_is_what_the_modules_say() -> None:
    assert PAGE.read_text() == file_map(), "run `make docs`"


def test_every_module_is_on_the_map_and_says_what_it_is() -> None:
    folders = {SOURCES / room for room in ROOMS}
    for path in SOURCES.rglob("*.py"):
        assert first_sentence(path), f"{path} does not say what it is"
        assert path.parent in folders or path == SOURCES / "__init__.py", f"{path.parent} is not on the map"


def test_the_architecture_is_read_in_three_screens() -> None:
    assert len(ARCHITECTURE.splitlines()) <= 150


def test_what_the_architecture_names_is_there() -> None:
    named = set(re.findall(r"`((?:" + "|".join(room for room in ROOMS if room) + r")/[a-z_/0-9.]+)`", ARCHITECTURE))
    assert len(named) > 15
    missing = [name for name in named if not (SOURCES / name).exists() and not (SOURCES / f"{name}.py").exists()]
    assert not missing
