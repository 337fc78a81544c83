"""`session()`: an ordinary SparkSession, tuned for topics.

Every default here was measured, and whatever you set yourself wins.

The same call works on `local[*]`, `local-cluster[…]`, `spark://…` and under spark-submit: where executors are other
processes, the part of this package that they need is sent to them.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
import warnings
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clarion.pipeline.cache import cached_file
from clarion.pipeline.java import prepare_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TASK_ATTEMPTS = 4  # as on a cluster; local mode would give up a query at a task's first failure
_STATE_STORE = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_LOCAL = re.compile(r"local(?:\[(\*|\d+)(?:,\s*\d+)?\])?")
_LOCAL_CLUSTER = re.compile(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,\s*\d+\s*\]")


_LOG_CONFIGURATION = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{yy/MM/dd HH:mm:ss} %p %c{1}: %m%n%ex
"""


# What else is on the path stays, in its order.
_WORKER_PYTHON = """\
#!/bin/sh
kept=
set -f
IFS=:
for each in $PYTHONPATH; do
  case "$each" in
    */pyspark.zip | */py4j-*-src.zip | */spark-core_*.jar) ;;
    *) kept="$kept${{kept:+:}}$each" ;;
  esac
done
unset IFS
PYTHONPATH="$kept" exec {python} "$@"
"""


class SparkMissingError(Exception):
    """The `spark` extra is not installed; the message says how to get it."""


class SparkConnectError(Exception):
    """A Spark Connect client has no driver of its own, which pipelines need; the message says what to use."""


def session(
    config: Mapping[str, object] | None = None, *, name: str = "clarion", master: str | None = None
) -> SparkSession:
    """A SparkSession that reads and writes topics: `spark.read.format("clarion")`.

    config  Spark settings; they win over every default of ours
    name    the application's name
    master  where it runs; by default on all cores of this machine, or wherever spark-submit says
    """
    builder = _builder()
    chosen = _texts(config or {})
    refuse_connect(master or chosen.get("spark.remote") or chosen.get("spark.master") or os.environ.get("SPARK_REMOTE"))
    if _is_running():
        return _apply(chosen)
    prepare_java()
    master = master or chosen.get("spark.master") or (None if _is_submitted() else default_master())
    python = chosen.get("spark.pyspark.python") or os.environ.get("PYSPARK_PYTHON")
    settings: dict[str, Any] = {"spark.app.name": name, **settings_of(master, chosen, python)}
    if master:
        settings["spark.master"] = master
    _prepare_environment(master)
    spark = builder.config(map=settings).getOrCreate()
    _settle(spark, chosen)
    return spark


def refuse_connect(address: str | None) -> None:
    """Spark Connect has no JVM to start queries, send packages and look at checkpoints with."""
    if address is not None and address.startswith("sc://"):
        raise SparkConnectError(
            f"{address} is Spark Connect, which cannot run pipelines: name the cluster itself "
            "(--master spark://host:7077, yarn or k8s://…), or run this with spark-submit beside it"
        )


def make_active(spark: SparkSession) -> None:
    """Let this thread use the session: Spark asks the thread's own for Python data sources, and a new one has none."""
    spark._get_j_spark_session_class(spark._jvm).setActiveSession(spark._jsparkSession)


def hush_accumulators(spark: SparkSession) -> None:
    """When the JVM dies, PySpark's server for accumulators prints a traceback over our view; we say it in a line."""
    server: Any = spark.sparkContext._accumulatorServer
    if server is not None:
        server.handle_error = lambda request, client_address: None


def forget_dead_spark() -> None:
    """Let go of a JVM that is gone, so that `session` starts another one; PySpark would ask the dead one for ever."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    with tidying(), warnings.catch_warnings(action="ignore"):
        if (context := SparkContext._active_spark_context) is not None:
            context.stop()
    gateway: Any = SparkContext._gateway
    with tidying():
        if gateway is not None:
            gateway.shutdown()
    SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = SparkSession._activeSession = None


@contextmanager
def tidying() -> Iterator[None]:
    """Letting go of a Spark that may have died already; whatever goes wrong with that is of no interest any more."""
    from py4j.protocol import Py4JError

    with suppress(Py4JError, OSError):
        yield


@contextmanager
def quiet_spark(log: Path, *, keep: bool = False) -> Iterator[None]:
    """A Spark that starts within the block says what it has to say into this file, to its end; we keep the terminal."""
    log.parent.mkdir(parents=True, exist_ok=True)
    ours = os.dup(2)
    with log.open("ab" if keep else "wb") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(ours, 2)
        os.close(ours)


def default_master() -> str:
    return f"local[{cores_here()},{TASK_ATTEMPTS}]"


def cores_here() -> int:
    return len(os.sched_getaffinity(0))


def cores_of(master: str | None) -> int | None:
    """How many tasks run at once; None where only the cluster knows."""
    if found := _LOCAL.fullmatch(master or ""):
        return cores_here() if found[1] == "*" else int(found[1] or 1)
    if found := _LOCAL_CLUSTER.fullmatch(master or ""):
        return int(found[1]) * int(found[2])
    return None


def is_local(master: str | None) -> bool:
    """Whether executors live in the driver's process, with its Python and its packages."""
    return _LOCAL.fullmatch(master or "") is not None


def settings_of(master: str | None, chosen: Mapping[str, str], python: str | None = None) -> dict[str, str]:
    """The defaults, and what was chosen, which wins; options for Java are put together, the chosen ones last."""
    ours = defaults(master, python)
    options = " ".join(filter(None, (each.get(_JAVA_OPTIONS) for each in (ours, chosen))))
    return {**ours, **chosen, **({_JAVA_OPTIONS: options} if options else {})}


def defaults(master: str | None, python: str | None = None) -> dict[str, str]:
    """The settings of a session, each with what it is good for; `python` is what its workers run, if somebody chose."""
    found = {
        # 40 ms less per Python task: loopback TCP waits for acknowledgements, Unix sockets do not.
        "spark.python.unix.domain.socket.enabled": "true",
        # Without checksum files a local checkpoint costs half the forks of chmod: 50 ms less per micro-batch.
        "spark.hadoop.fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.RawLocalFs",
        # State beyond the heap, and only its changes written with each batch.
        "spark.sql.streaming.stateStore.providerClass": _STATE_STORE,
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        # Pipelines of one session take turns, each in its pool: first come, first served would starve the later ones.
        "spark.scheduler.mode": "FAIR",
        # A message's time means the same on every machine.
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        # What a Python function or a writer gets at once. Ten thousand rows (Spark's other limit) of a kilobyte leave
        # the processor's cache, and stand in a worker three times: as Arrow, as objects, as results.
        "spark.sql.execution.arrow.maxBytesPerBatch": "4m",
        "spark.ui.showConsoleProgress": "false",
        **_quiet_logs(),
    }
    if cores := cores_of(master):
        # One state file per core instead of 200; a checkpoint keeps the number it was made with.
        found["spark.sql.shuffle.partitions"] = str(cores)
        # Loopback only, as the broker does; and a host name that resolves oddly is no obstacle.
        found |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    if is_local(master) and (python is None or python in (sys.executable, worker_python())):
        # Workers are forked with everything imported; another Python may not have this package.
        found["spark.python.daemon.module"] = "clarion.pipeline.daemon"
    return found


def _quiet_logs() -> dict[str, str]:
    """Errors only, and none of the lines that Spark greets with; unless somebody keeps a configuration of Spark."""
    if "SPARK_CONF_DIR" in os.environ:
        return {}
    path = cached_file(
        f"log4j2-{zlib.crc32(_LOG_CONFIGURATION.encode()):08x}.properties", _LOG_CONFIGURATION, os.environ
    )
    return {_JAVA_OPTIONS: f"-Dlog4j2.configurationFile={path.as_uri()}"} if path else {}


def _builder() -> SparkSession.Builder:
    try:
        import pyarrow  # noqa: F401  (the connector speaks Arrow; better said here than by a worker that dies)
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise SparkMissingError(
            f"pipelines need Spark ({error.name} is missing): pip install 'clarion-broker[spark]'"
        ) from error
    return SparkSession.builder


def _texts(config: Mapping[str, object]) -> dict[str, str]:
    return {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in config.items()}


def _is_running() -> bool:
    from pyspark import SparkContext

    return SparkContext._active_spark_context is not None


def _apply(chosen: Mapping[str, str]) -> SparkSession:
    """A running session keeps its own settings; it gets what was asked for, as far as that can still be changed."""
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.config(map=dict(chosen)).getOrCreate()
    _send_package(spark)
    return spark


def _is_submitted() -> bool:
    """Under spark-submit the gateway is there before us, and the master was said on its command line."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def _prepare_environment(master: str | None) -> None:
    # Without it workers run plain `python3`, which knows nothing of this environment's packages.
    os.environ.setdefault("PYSPARK_PYTHON", (worker_python() if is_local(master) else None) or sys.executable)
    if cores_of(master):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # Spark's web page, too, for this machine only


def worker_python() -> str | None:
    """This Python, for Spark's workers on this machine.

    Spark puts its own zips of PySpark and py4j before everything else, for planning twice, and a zip holds no compiled
    modules: every process that it starts (a dozen for two pipelines) would compile PySpark anew, which takes two
    seconds of a core instead of less than one; and it waits for ten at most. The installed ones are the same, compiled.
    """
    if not _is_spark_installed():
        return None
    content = _WORKER_PYTHON.format(python=shlex.quote(sys.executable))
    name = f"python-{zlib.crc32(content.encode()):08x}"
    path = cached_file(name, content, os.environ, is_program=True)
    return str(path) if path else None


def _is_spark_installed() -> bool:
    """Whether the PySpark beside this Python is the very Spark that will run. Where SPARK_HOME names another one, or
    PySpark is found through PYTHONPATH alone, workers need what Spark puts on their path."""
    import py4j
    import pyspark
    from pyspark.find_spark_home import _find_spark_home

    files = [Path(str(each.__file__)) for each in (pyspark, py4j)]  # in a zip there are none
    return all(each.is_file() for each in files) and files[0].parent.resolve() == Path(_find_spark_home()).resolve()


def _settle(spark: SparkSession, chosen: Mapping[str, str]) -> None:
    if "spark.sql.shuffle.partitions" not in chosen and cores_of(spark.sparkContext.master) is None:
        spark.conf.set("spark.sql.shuffle.partitions", max(2, spark.sparkContext.defaultParallelism))
    _send_package(spark)


def _send_package(spark: SparkSession) -> None:
    from clarion.pipeline.shipping import make_known, ship

    if not is_local(spark.sparkContext.master):
        ship(spark)
        return
    # Spark would find them by itself, in a Python that it starts for that; on a busy machine it gives that ten seconds,
    # and then says that there is no such format.
    make_known(spark)
