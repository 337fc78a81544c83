"""Every command that README and the quick start show is run, and the Python in the quick start too."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.servers import ClarionProcess

ROOT = Path(__file__).resolve().parent.parent.parent
BIN = Path(sys.executable).parent


def shown_commands(page: str) -> list[str]:
    blocks = re.findall(r"```console\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    lines = [line[2:] for block in blocks for line in block.splitlines() if line.startswith("$ ")]
    return [line for line in lines if not line.startswith("clarion serve")]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory):
    with ClarionProcess(tmp_path_factory.mktemp("docs") / "data") as server:
        path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
        yield {**os.environ, "PATH": path, "CLARION_BOOTSTRAP": server.bootstrap}


@pytest.mark.parametrize("page", ["README.md", "docs/quickstart.md"])
def test_the_commands_on_the_page_work(page: str, environment: dict[str, str]) -> None:
    commands = shown_commands(page)
    assert len(commands) >= 4
    subprocess.run(["clarion", "topic", "delete", "orders", "--yes"], env=environment, capture_output=True, check=False)
    for command in commands:
        done = subprocess.run(command, shell=True, env=environment, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"


def test_the_python_in_the_quick_start_works(environment: dict[str, str]) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/quickstart.md").read_text(), re.DOTALL)
    code = code.replace("127.0.0.1:9092", environment["CLARION_BOOTSTRAP"])
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "b'" in done.stdout


@pytest.mark.parametrize(
    "page", sorted(str(path.relative_to(ROOT)) for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
)
def test_links_between_pages_lead_somewhere(page: str) -> None:
    for target in re.findall(r"\]\(([^)#]+)", (ROOT / page).read_text()):
        if "://" not in target:
            assert ((ROOT / page).parent / target).exists(), f"{page} links to {target}"
