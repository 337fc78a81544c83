"""One small Spark and one S3 server for all folders: whoever asks first starts them, they end with the process."""

import os

import pytest

# Every JVM of these tests, those of commands too, ends after seconds or minutes: compiling for speed would not pay.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

SMALL = {
    "spark.ui.enabled": "false",
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.minBatchesToRetain": "5",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Who asks for Spark is marked so; who starts one in a process of its own says it himself."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)


@pytest.fixture(scope="session")
def spark():
    from clarion.pipeline import session

    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    # As many tries for a task as by default: some tests kill its worker.
    return session(SMALL, master="local[2,4]", name="clarion-tests")


@pytest.fixture(scope="session")
def s3(tmp_path_factory):
    """An S3 server on loopback."""
    from tests.pipeline.lake.stores import s3_server

    with s3_server(tmp_path_factory.mktemp("s3")) as store:
        yield store
