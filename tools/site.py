"""Puts the pages of the documentation site together, for MkDocs to build: `python -m tools.site FOLDER`.

The same files as in the repository: README.md is the front page, and the pages beside it lie together with those of
docs/. Links between them are bent to where they lie now; what they say of source files stays as words, for the site
has none. The decisions, one short file each, become one page.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path, PurePosixPath
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
DECISIONS: Final = "decisions.md"
BESIDE: Final = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md")
_LINK: Final = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
_FENCE: Final = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)


def main(folder: str) -> None:
    target = Path(folder)
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for name, text in pages().items():
        (target / name).write_text(text)
    shutil.copytree(ROOT / "docs/images", target / "images")


def pages() -> dict[str, str]:
    """The text of every page of the site by its name."""
    found = {name_on_site(name): bent((ROOT / name).read_text(), name) for name in BESIDE}
    for path in sorted((ROOT / "docs").glob("*.md")):
        found[path.name] = bent(path.read_text(), f"docs/{path.name}")
    decisions = [_below(bent(path.read_text(), f"docs/decisions/{path.name}")) for path in _decisions()]
    found[DECISIONS] = "\n".join(["# Decisions", "", *decisions])
    return found


def name_on_site(source: str) -> str | None:
    """Where a file of the repository lies on the site; None if it is no part of it."""
    if source == "README.md":
        return "index.md"
    if source in ("docs/decisions", "docs/decisions/"):
        return DECISIONS
    path = PurePosixPath(source)
    if source in BESIDE or (path.parent == PurePosixPath("docs") and path.suffix == ".md"):
        return path.name
    if path.is_relative_to("docs/images"):
        return str(path.relative_to("docs"))
    return None


def bent(text: str, source: str) -> str:
    """The text with its links leading to where their targets lie on the site; code is left alone."""
    kept: list[str] = []
    at = 0
    for fence in _FENCE.finditer(text):
        kept += [_bend(text[at : fence.start()], source), fence[0]]
        at = fence.end()
    return "".join([*kept, _bend(text[at:], source)])


def _bend(text: str, source: str) -> str:
    return _LINK.sub(lambda link: _bent_link(link, source), text)


def _bent_link(link: re.Match[str], source: str) -> str:
    mark, words, target = link.groups()
    words = _bend(words, source)
    if "://" in target:
        return f"{mark}[{words}]({target})"
    path, hash_, anchor = target.partition("#")
    if not path:
        return f"{mark}[{words}]({target})"
    wanted = _normal(PurePosixPath(source).parent / path)
    if PurePosixPath(wanted).parent == PurePosixPath("docs/decisions") and wanted.endswith(".md"):
        return f"[{words}]({DECISIONS}#{slug(_title(ROOT / wanted))})"
    place = name_on_site(wanted)
    return words if place is None else f"{mark}[{words}]({place}{hash_}{anchor})"


def slug(title: str) -> str:
    """The anchor of a heading, as the site and GitHub make it."""
    plain = re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", title)
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", plain).strip().lower())


def _normal(path: PurePosixPath) -> str:
    parts: list[str] = []
    for part in path.parts:
        if part == ".." and parts:
            parts.pop()
        elif part != ".":
            parts.append(part)
    return "/".join(parts)


def _decisions() -> list[Path]:
    return sorted((ROOT / "docs/decisions").glob("*.md"))


def _title(path: Path) -> str:
    return path.read_text().partition("\n")[0].removeprefix("# ")


def _below(text: str) -> str:
    """Every heading one step further down."""
    return re.sub(r"^(#+ )", r"#\1", text, flags=re.MULTILINE)


if __name__ == "__main__":
    main(sys.argv[1])
