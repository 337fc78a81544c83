"""A name means one thing: two classes of the package never share one."""

import ast
from collections import defaultdict
from pathlib import Path

SOURCES = Path(__file__).parent.parent / "src/clarion"


def shared_names(paths: list[Path]) -> dict[str, list[str]]:
    homes = defaultdict(list)
    for path in paths:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                homes[node.name].append(str(path))
    return {name: places for name, places in homes.items() if len(places) > 1}


def test_two_classes_never_share_a_name() -> None:
    assert shared_names(sorted(SOURCES.rglob("*.py"))) == {}


def test_a_name_that_is_shared_is_found(tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / f"{name}.py").write_text("class Shard: ...\n")
    assert list(shared_names(sorted(tmp_path.iterdir()))) == ["Shard"]
