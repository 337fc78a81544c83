"""The documentation says what the code says."""

from __future__ import annotations

import re

import pytest
import typer

from clarion.cli.app import app
from clarion.cli.flags import parse_flags
from clarion.cli.reference import DOCS, leaves, refreshed
from clarion.cli.settings import load


@pytest.mark.parametrize("page", ["configuration.md", "cli.md"])
def test_the_generated_parts_are_up_to_date(page):
    text = (DOCS / page).read_text()
    assert refreshed(text) == text, "run: python -m clarion.cli.reference"


def test_every_command_and_option_is_documented():
    text = (DOCS / "cli.md").read_text()
    for path, command in leaves(typer.main.get_command(app), ()):
        assert f"### clarion {' '.join(path)}\n" in text
        for parameter in command.params:
            if parameter.param_type_name == "option" and parameter.name != "help":
                assert f"`{parameter.opts[0]}`" in text


def test_the_example_file_is_a_good_one(tmp_path):
    text = (DOCS / "configuration.md").read_text()
    example = re.search(r"```toml\n(.*?)```", text, re.DOTALL)[1]
    for name in ("broker.pem", "broker.key", "clients.pem"):
        (tmp_path / name).write_text("")
    file = tmp_path / "clarion.toml"
    file.write_text(example.replace("/etc/clarion", str(tmp_path)))
    loaded = load(str(file), {}, parse_flags(["--insecure"]))
    assert [each.port for each in loaded.config.listeners] == [9092, 9093]


def test_serve_shows_as_help_the_very_flags_it_understands():
    """Running takes a short way past Typer; both ways come from one table."""
    shown = next(command for path, command in leaves(typer.main.get_command(app), ()) if path == ("serve",))
    names = {parameter.name for parameter in shown.params} - {"help"}
    assert names == {*parse_flags([])}
