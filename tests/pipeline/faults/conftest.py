"""For every test a broker of its own, which may be killed, frozen, emptied."""

import pytest

from tests.pipeline.faults.scene import SOURCE, Scene
from tests.pipeline.lake.stores import s3_server
from tests.servers import ClarionProcess

# Retention looks often, so that a test does not have to wait for it.
IMPATIENT = {"CLARION_RETENTION_CHECK_SECONDS": "0.1"}


@pytest.fixture
def broker(tmp_path):
    with ClarionProcess(tmp_path / "broker" / "data", durability="page-cache", env=IMPATIENT) as process:
        yield process


@pytest.fixture
def scene(broker, tmp_path, request, monkeypatch):
    """Its tables lie in a folder; in an object store for tests that say so (`IN_BOTH`)."""
    spark = lambda: request.getfixturevalue("spark")  # noqa: E731
    if getattr(request, "param", "folder") == "folder":
        yield Scene(broker, tmp_path, spark, f"{tmp_path}/lake/{SOURCE}")
        return
    with s3_server(tmp_path) as store:
        for name, value in store.environment.items():
            monkeypatch.setenv(name, value)
        yield Scene(broker, tmp_path, spark, f"{store.bucket()}/{SOURCE}", dict(store.options))
