"""The documentation site: every page is in its menu, and every link and anchor leads somewhere."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from tools.site import bent, pages, slug

ROOT = Path(__file__).parents[2]
PAGES = pages()
LINK = re.compile(r"\]\(([^)\s]+)\)")


def prose(text: str) -> str:
    return re.sub(r"^```.*?^```$|`[^`\n]*`", "", text, flags=re.DOTALL | re.MULTILINE)


def anchors(page: str) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```$", "", PAGES[page], flags=re.DOTALL | re.MULTILINE), re.M)
    return {slug(heading) for heading in headings}


def in_menu(entry: Any) -> list[str]:
    if isinstance(entry, str):
        return [entry]
    values = entry if isinstance(entry, list) else entry.values()
    return [page for each in values for page in in_menu(each)]


def test_every_page_is_in_the_menu_once() -> None:
    menu = in_menu(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])
    assert sorted(menu) == sorted(PAGES)


@pytest.mark.parametrize("page", PAGES)
def test_links_and_anchors_of_the_site_lead_somewhere(page: str) -> None:
    for target in LINK.findall(prose(PAGES[page])):
        path, _, anchor = target.partition("#")
        if "://" in target:
            continue
        assert not path or path in PAGES or (ROOT / "docs" / path).is_file(), f"{page} links to {target}"
        if anchor:
            assert anchor in anchors(path or page), f"{page} links to {target}"


def test_links_are_bent_to_where_pages_lie_on_the_site() -> None:
    assert bent("see [it](../ARCHITECTURE.md#rooms)", "docs/x.md") == "see [it](ARCHITECTURE.md#rooms)"
    assert bent("see [it](docs/cli.md)", "README.md") == "see [it](cli.md)"
    assert bent("![a](docs/images/demo.svg)", "README.md") == "![a](images/demo.svg)"
    assert bent("[`log.py`](../src/clarion/log/log.py)", "docs/files.md") == "`log.py`"
    assert bent("[why](docs/decisions)", "README.md") == "[why](decisions.md)"
    assert bent("[web](https://kafka.apache.org/x.md)", "README.md") == "[web](https://kafka.apache.org/x.md)"
    fenced = "```python\nx = a[b](c.md)\n```\n"
    assert bent(fenced, "README.md") == fenced
