"""One small Spark for the whole folder. It ends with the process: other folders may be using it too."""

import os

import pytest

SMALL = {
    "spark.ui.enabled": "false",
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.minBatchesToRetain": "5",
}


@pytest.fixture(scope="session")
def spark():
    from clarion.pipeline import session

    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    return session(SMALL, master="local[2,2]", name="clarion-tests")


@pytest.fixture(scope="package")
def broker(tmp_path_factory):
    from tests.servers import ClarionProcess

    with ClarionProcess(tmp_path_factory.mktemp("broker") / "data", durability="page-cache") as process:
        yield process
