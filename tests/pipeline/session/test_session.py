"""A session: an ordinary one, tuned, on whatever master."""

import json
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from clarion.pipeline.shipping import configured_cores, ship
from clarion.pipeline.spark_session import (
    _STATE_STORE,
    SparkConnectError,
    SparkMissingError,
    cores_here,
    cores_of,
    default_master,
    defaults,
    is_local,
    session,
    settings_of,
    worker_python,
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


@pytest.mark.parametrize(
    ("config", "cores"),
    [
        ({"spark.cores.max": "12"}, 12),
        ({"spark.executor.instances": "5", "spark.executor.cores": "4"}, 20),
        ({"spark.executor.instances": "5"}, None),
        (
            {
                "spark.dynamicAllocation.enabled": "true",
                "spark.dynamicAllocation.maxExecutors": "10",
                "spark.executor.instances": "2",
                "spark.executor.cores": "4",
            },
            40,
        ),
        ({}, None),
    ],
)
def test_how_many_tasks_a_cluster_runs_at_once_as_far_as_settings_say(config, cores):
    assert configured_cores(config) == cores


def test_only_local_executors_share_the_drivers_packages():
    assert [is_local(each) for each in ("local[2]", "local-cluster[1,1,1024]", "spark://h:1")] == [True, False, False]


def test_by_default_all_cores_are_used_and_a_task_gets_another_chance():
    assert default_master() == f"local[{cores_here()},4]"


def test_a_cluster_decides_itself_how_many_partitions_and_which_addresses():
    assert "spark.sql.shuffle.partitions" not in defaults("spark://host:7077")
    assert "spark.driver.host" not in defaults("spark://host:7077")
    assert defaults("local[3]")["spark.sql.shuffle.partitions"] == "3"


def test_only_workers_of_this_python_on_this_machine_are_forked_by_our_daemon(monkeypatch):
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    module = "spark.python.daemon.module"
    assert module in defaults("local[2]")
    assert module in defaults("local[2]", sys.executable)
    assert module not in defaults("local[2]", "/usr/bin/another-python")
    assert module not in defaults("spark://host:7077")


def test_workers_import_the_installed_pyspark_however_often_spark_puts_its_zip_on_their_path(tmp_path):
    """Of processes that plan, it does so twice."""
    sparks = ["/spark/lib/pyspark.zip", "/spark/lib/py4j-0.10.9.9-src.zip", "/spark/jars/spark-core_2.13-4.3.0.jar"]
    ours = tmp_path / "with space and *"
    look = "import json, os, sys; print(json.dumps([os.environ['PYTHONPATH'], sys.argv]))"
    done = subprocess.run(
        [worker_python(), "-c", look, "a  b"],
        env={"PYTHONPATH": ":".join([*sparks, str(ours), *sparks, "/theirs"])},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout) == [f"{ours}:/theirs", ["-c", "a  b"]]


def test_workers_of_a_spark_that_is_not_installed_keep_its_zips(monkeypatch, tmp_path):
    """Else they would have no PySpark at all, or that of another version than the JVM's."""
    assert worker_python() is not None
    monkeypatch.setattr("py4j.__file__", "/opt/spark/python/lib/py4j-0.10.9.9-src.zip/py4j/__init__.py")
    assert worker_python() is None
    monkeypatch.undo()
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    assert worker_python() is None
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "nowhere"))
    assert worker_python() is None, "whoever starts Spark says which program is not there"
    monkeypatch.setenv("SPARK_HOME", str(Path(pyspark.__file__).parent))
    assert worker_python() is not None


def test_options_for_java_come_after_ours_and_logs_stay_quiet(monkeypatch):
    monkeypatch.delenv("SPARK_CONF_DIR", raising=False)
    name = "spark.driver.extraJavaOptions"
    ours = defaults("local[2]")[name]
    assert "log4j2" in ours
    assert settings_of("local[2]", {name: "-XX:+UseSerialGC"})[name] == f"{ours} -XX:+UseSerialGC"
    assert settings_of("local[2]", {})[name] == ours


THREADS = """
import os
from clarion.pipeline.daemon import import_for_workers

import_for_workers()
print([open(f"/proc/self/task/{each}/comm").read().strip() for each in os.listdir("/proc/self/task")][1:])
"""


def test_what_is_imported_before_workers_are_forked_starts_no_thread_but_one_that_knows_forks():
    done = subprocess.run([sys.executable, "-c", THREADS], capture_output=True, text=True, timeout=100, check=True)
    assert done.stdout.strip() in ("[]", "['jemalloc_bg_thd']")


def test_a_configuration_of_spark_is_left_alone(monkeypatch, tmp_path):
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    assert "spark.driver.extraJavaOptions" not in defaults("local")


def test_without_spark_the_error_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)
    with pytest.raises(SparkMissingError, match=r"pip install 'clarion-broker\[spark\]'"):
        session()


LOOK = """
import json, sys
from pyspark.sql.functions import udf
from clarion.pipeline import session

spark = session({"spark.ui.enabled": False, "spark.sql.shuffle.partitions": 3}, master="local[2,4]", name="look")
again = session({"spark.sql.ansi.enabled": False})
python = spark.range(1).select(udf(lambda _: sys.executable, "string")("id")).first()[0]
@udf("string")
def memory(_):
    kilobytes = dict(line.split()[:2] for line in open("/proc/self/smaps_rollup").readlines()[1:])
    own = int(kilobytes["Private_Clean:"]) + int(kilobytes["Private_Dirty:"])
    return "shared" if own < int(kilobytes["Rss:"]) / 2 else f"{own} of {kilobytes['Rss:']} KB are its own"

package = spark.range(1).select(udf(lambda _: sys.modules["pyspark"].__file__, "string")("id")).first()[0]
names = ("sql.shuffle.partitions", "sql.session.timeZone", "sql.ansi.enabled", "python.unix.domain.socket.enabled",
         "sql.streaming.stateStore.providerClass", "app.name", "driver.host", "sql.execution.arrow.maxBytesPerBatch")
found = {name: again.conf.get("spark." + name) for name in names}
print(json.dumps({**found, "master": again.sparkContext.master, "python": python, "pyspark in workers": package,
                  "memory of workers": spark.range(1).select(memory("id")).first()[0],
                  "is the same": again.sparkContext is spark.sparkContext}))
print("the end begins", file=sys.stderr, flush=True)
"""


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_a_session_is_tuned_what_was_asked_for_wins_and_a_second_call_gives_it_again():
    command = [sys.executable, "-c", LOOK]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "sql.shuffle.partitions": "3",
        "sql.session.timeZone": "UTC",
        "sql.ansi.enabled": "false",
        "python.unix.domain.socket.enabled": "true",
        "sql.streaming.stateStore.providerClass": _STATE_STORE,
        "app.name": "look",
        "driver.host": "127.0.0.1",
        "sql.execution.arrow.maxBytesPerBatch": "4m",
        "master": "local[2,4]",
        "python": sys.executable,
        "pyspark in workers": pyspark.__file__,  # compiled, as it is installed; not Spark's own zip
        "memory of workers": "shared",  # with the daemon that forked them
        "is the same": True,
    }
    # When it ends, Spark's own workers may complain of a pipe that has gone.
    said, _, _ = done.stderr.partition("the end begins")
    assert [line for line in said.splitlines() if "incubator" not in line] == [], "a session starts without a word"


@pytest.mark.parametrize("config", [{"spark.remote": "sc://host:15002"}, {"spark.master": "sc://host"}])
def test_spark_connect_is_refused_in_one_line_that_says_what_to_use(config, monkeypatch):
    with pytest.raises(
        SparkConnectError, match=r"^sc://host\S* is Spark Connect.*--master spark://host:7077.*beside it$"
    ):
        session(config)
    with pytest.raises(SparkConnectError):
        session(master="sc://host")
    monkeypatch.setenv("SPARK_REMOTE", "sc://host:15002")
    with pytest.raises(SparkConnectError, match="sc://host:15002"):
        session()


def test_a_session_of_spark_connect_gets_no_package():
    class Remote:
        """What a Spark Connect session looks like from here: no JVM behind it."""

    with pytest.raises(SparkConnectError):
        ship(Remote())
