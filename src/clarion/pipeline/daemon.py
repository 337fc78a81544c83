"""Spark's worker daemon on this machine, with what every worker needs already there.

`python -m clarion.pipeline.daemon pyspark.worker`, which Spark starts itself (`spark.python.daemon.module`). PySpark's
own daemon forks bare workers, each of which imports PySpark, numpy, pyarrow and this package: half a second of a core
and 60 MB, for each of the three that a task of a pipeline has (one reads, one runs functions, one writes). Here they
are imported once, before the fork, and the workers share the pages.

Threads do not survive a fork, and locks that they hold are never released. The only thread that these imports start is
jemalloc's, which sets its locks right in the child by itself (`pthread_atfork`); numpy's are not started.
"""

import gc
import os
import sys
from importlib import import_module
from importlib.util import find_spec

EVERY_WORKER = (
    "pyspark.worker",
    "clarion.pipeline.source.data_source",
    "clarion.pipeline.sink.writer",
    "clarion.pipeline.lake.sink",
)
# The first Python function of a worker imports it: pyarrow asks it about the function's results.
WHERE_INSTALLED = "pandas"


def import_for_workers() -> None:
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    for name in EVERY_WORKER:
        import_module(name)
    if find_spec(WHERE_INSTALLED) is not None:
        import_module(WHERE_INSTALLED)
    gc.collect()
    gc.freeze()  # a collection in a worker writes to every object it looks at, and a page that is written is a copy


if __name__ == "__main__":
    from pyspark.daemon import manager

    if "pyspark.worker" in sys.argv:  # not what plans: one short-lived process each
        import_for_workers()
    manager()
