"""A session: an ordinary one, tuned, on whatever master."""

import os
import sys

import pytest

from clarion.pipeline.spark_session import (
    SparkMissingError,
    cores_here,
    cores_of,
    default_master,
    defaults,
    is_local,
    session,
)


@pytest.mark.parametrize(
    ("master", "cores"),
    [
        ("local", 1),
        ("local[4]", 4),
        ("local[4,2]", 4),
        ("local[*]", cores_here()),
        ("local[*,4]", cores_here()),
        ("local-cluster[2,3,1024]", 6),
        ("spark://host:7077", None),
        ("yarn", None),
        ("k8s://https://host", None),
        (None, None),
    ],
)
def test_how_many_tasks_a_master_runs_at_once(master, cores):
    assert cores_of(master) == cores


def test_only_local_executors_share_the_drivers_packages():
    assert [is_local(each) for each in ("local[2]", "local-cluster[1,1,1024]", "spark://h:1")] == [True, False, False]


def test_by_default_all_cores_are_used_and_a_task_gets_another_chance():
    assert default_master() == f"local[{cores_here()},4]"


def test_a_cluster_decides_itself_how_many_partitions_and_which_addresses():
    assert "spark.sql.shuffle.partitions" not in defaults("spark://host:7077")
    assert "spark.driver.host" not in defaults("spark://host:7077")
    assert defaults("local[3]")["spark.sql.shuffle.partitions"] == "3"


def test_a_configuration_of_spark_is_left_alone(monkeypatch, tmp_path):
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    assert "spark.driver.extraJavaOptions" not in defaults("local")


def test_without_spark_the_error_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)
    with pytest.raises(SparkMissingError, match=r"pip install 'clarion-broker\[spark\]'"):
        session()


def test_a_session_is_tuned_and_what_was_asked_for_wins(spark):
    """The folder's session was opened with shuffle partitions of its own."""
    assert spark.conf.get("spark.sql.shuffle.partitions") == "3"
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.python.unix.domain.socket.enabled") == "true"
    assert spark.conf.get("spark.sql.streaming.stateStore.providerClass").endswith("RocksDBStateStoreProvider")
    assert spark.sparkContext.master == "local[2,4]"
    assert os.environ["PYSPARK_PYTHON"] == sys.executable


def test_a_second_call_gives_the_same_session_with_what_it_asks_for(spark):
    again = session({"spark.sql.shuffle.partitions": 3, "spark.sql.ansi.enabled": True})
    assert again.sparkContext is spark.sparkContext
    assert again.conf.get("spark.sql.ansi.enabled") == "true"


def test_a_python_function_runs_in_its_workers(spark):
    from pyspark.sql.functions import udf

    here = udf(lambda _: sys.executable, "string")
    assert spark.range(1).select(here("id")).first()[0] == sys.executable
