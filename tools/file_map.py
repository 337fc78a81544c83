"""Writes the file map in ARCHITECTURE.md from the first sentence of every module: `python -m tools.file_map`."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "ARCHITECTURE.md"
BEGIN, END = "<!-- file map: make docs -->", "<!-- end of file map -->"

ROOMS = (
    *("cli", "testing"),
    *("pipeline/ready", "pipeline/lake", "pipeline/source", "pipeline/sink", "pipeline/kafka", "pipeline"),
    *("broker/apis", "broker"),
    *("groups", "replication", "cluster"),
    *("log", "net"),
    *("wire/messages", "wire/tables", "wire"),
    *("world", "model"),
    "",  # the package itself
)


def file_map() -> str:
    """One table row per module, room by room from the top of the house to its foundations."""
    lines = [BEGIN]
    for room in ROOMS:
        folder = ROOT / "src/clarion" / room
        modules = sorted(path for path in folder.glob("*.py") if path.name != "__init__.py")
        if not modules:
            continue
        lines += [
            "",
            f"### `{room or 'clarion'}`",
            "",
            first_sentence(folder / "__init__.py"),
            "",
            "| file | what it is |",
            "|---|---|",
        ]
        lines += [f"| [`{path.name}`]({path.relative_to(ROOT)}) | {first_sentence(path)} |" for path in modules]
    return "\n".join([*lines, "", END])


def first_sentence(path: Path) -> str:
    doc = ast.get_docstring(ast.parse(path.read_text())) or ""
    paragraph = " ".join(doc.split("\n\n")[0].split())
    sentence = re.split(r"(?<=[.!?:])\s", paragraph + " ", maxsplit=1)[0]
    return sentence.rstrip(":").replace("|", "\\|")


def with_map(page: str) -> str:
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + file_map() + after


if __name__ == "__main__":
    PAGE.write_text(with_map(PAGE.read_text()))
