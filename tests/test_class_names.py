"""A name means one thing: two classes never share one.

`pipeline` has names of its own, because it never meets the broker's (it is sent to Spark's workers without them), so
the two sides are looked at apart.
"""

import ast
from collections import defaultdict
from pathlib import Path

SOURCES = Path(__file__).parent.parent / "src/clarion"
STILL_SHARED = {  # may only become fewer
    "broker": set(),
    "pipeline": {"Batch", "Run", "TaskFiles", "Written"},
}


def shared_names(paths: list[Path]) -> dict[str, list[str]]:
    homes = defaultdict(list)
    for path in paths:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                homes[node.name].append(str(path))
    return {name: places for name, places in homes.items() if len(places) > 1}


def test_two_classes_never_share_a_name() -> None:
    sides: dict[str, list[Path]] = {"broker": [], "pipeline": []}
    for path in sorted(SOURCES.rglob("*.py")):
        sides["pipeline" if path.is_relative_to(SOURCES / "pipeline") else "broker"].append(path)
    for side, paths in sides.items():
        shared = shared_names(paths)
        assert {name: places for name, places in shared.items() if name not in STILL_SHARED[side]} == {}


def test_a_name_that_is_shared_is_found(tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / f"{name}.py").write_text("class Shard: ...\n")
    assert list(shared_names(sorted(tmp_path.iterdir()))) == ["Shard"]
