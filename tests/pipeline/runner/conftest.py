"""One broker for the whole folder; pipelines in files, as people write them."""

import textwrap
from pathlib import Path

import pytest

from clarion.pipeline.definition import ONCE, Plan
from clarion.pipeline.loading import load_file
from clarion.pipeline.runner import Runner
from tests.servers import ClarionProcess


@pytest.fixture(scope="package")
def broker(tmp_path_factory):
    with ClarionProcess(tmp_path_factory.mktemp("broker") / "data", durability="page-cache") as process:
        yield process


@pytest.fixture
def stage(spark, broker, tmp_path):
    return Stage(spark, broker.bootstrap, tmp_path)


class Stage:
    """Where a test plays pipelines: files, a state folder, and what the audience saw."""

    def __init__(self, spark, bootstrap: str, folder: Path) -> None:
        self.spark, self.bootstrap, self.folder = spark, bootstrap, folder
        self.seen: list[tuple[str, str]] = []

    def file(self, text: str, name: str = "pipelines.py") -> Path:
        path = self.folder / name
        path.write_text(textwrap.dedent(text))
        return path

    def runner(self, path: Path, how: str = ONCE, **plan) -> Runner:
        settings = {"bootstrap": self.bootstrap, "state_dir": self.folder / "state", "must_wait": False, **plan}
        return Runner(load_file(path), Plan(how=how, **settings), self._watch)

    def play(self, path: Path, how: str = ONCE, **plan) -> Runner:
        runner = self.runner(path, how, **plan)
        runner.run(lambda config: self.spark)
        return runner

    def _watch(self, progresses) -> None:
        for each in progresses:
            if not self.seen or self.seen[-1] != (each.state, each.detail):
                self.seen.append((each.state, each.detail))
