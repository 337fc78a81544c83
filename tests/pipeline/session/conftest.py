"""One small Spark for the whole folder, which ends with it: other folders want other settings."""

import pytest


@pytest.fixture(scope="package")
def spark():
    from clarion.pipeline import session

    spark = session(
        {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": 3}, master="local[2,4]", name="session tests"
    )
    yield spark
    spark.stop()
