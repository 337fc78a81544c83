"""How this package reaches executors that do not have it: as a zip on their Python path.

On one machine nothing needs to be sent. Elsewhere executors need pyspark, pyarrow and numpy, which are part of their
installation, and this package, which is not. `ship(spark)` sends it to a running application; `build_zip(path)` makes
the file for `spark-submit --py-files`, for YARN and for Kubernetes images.

The zip holds the whole package, not only what executors run: a part would hide the rest where both are there.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

from clarion.pipeline.spark_session import cores_of, refuse_connect
from clarion.pipeline.workers import CORES_VARIABLE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FORMATS: Final = ("pyspark_clarion", "pyspark_clarion_lake")  # found by Spark by their names, where they are installed
PACKAGES: Final = ("clarion", *FORMATS)
# The same sources give the same bytes, so that a zip can be recognised by its content.
_NO_TIME: Final = (1980, 1, 1, 0, 0, 0)


def ship(spark: SparkSession) -> Path:
    """Send the package to the executors of a running application; once is enough, more does no harm.

    Spark looks for formats only in what is installed, so those in the zip are made known by hand.
    """
    if not hasattr(spark, "_jsparkSession"):
        refuse_connect("sc://…")
    path = build_zip()
    if spark.conf.get(_SHIPPED, "") != path.name:
        spark.sparkContext.addPyFile(str(path))
        make_known(spark)
        spark.conf.set(_SHIPPED, path.name)
    return path


def make_known(spark: SparkSession) -> None:
    """Tell Spark of the formats, and those who will plan their tasks how many run at once."""
    context = spark.sparkContext
    told = (
        os.environ.get(CORES_VARIABLE) or cores_of(context.master) or configured_cores(dict(context.getConf().getAll()))
    )
    context.environment[CORES_VARIABLE] = str(told or 0)
    for package in FORMATS:
        spark.dataSource.register(import_module(package).DefaultSource)


def configured_cores(config: Mapping[str, str]) -> int | None:
    """How many tasks a cluster runs at once for us, if the settings say so."""
    if (most := config.get("spark.cores.max", "")).isdigit():
        return int(most)
    is_dynamic = config.get("spark.dynamicAllocation.enabled") == "true"
    executors = config.get("spark.dynamicAllocation.maxExecutors" if is_dynamic else "spark.executor.instances", "")
    each = config.get("spark.executor.cores", "")
    return int(executors) * int(each) if executors.isdigit() and each.isdigit() else None


_SHIPPED: Final = "clarion.pipeline.shipped"


def build_zip(path: Path | str | None = None) -> Path:
    """The package as a zip: at `path`, or in a temporary folder under a name that says what is in it."""
    sources = sorted(_sources())
    if path is None:
        path = _temporary_folder() / f"clarion-{_digest(sources)}.zip"
        if path.exists():
            return path
    path = Path(path)
    with ZipFile(path, "w", ZIP_DEFLATED) as archive:
        for name, file in sources:
            archive.writestr(ZipInfo(name, _NO_TIME), file.read_bytes(), ZIP_DEFLATED)
    return path


@cache
def _temporary_folder() -> Path:
    """One for this process, gone with it."""
    folder = tempfile.mkdtemp(prefix="clarion-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def _sources() -> Iterator[tuple[str, Path]]:
    """Every Python file of the packages, by its name in the zip."""
    for package in PACKAGES:
        spec = find_spec(package)
        for root in spec.submodule_search_locations or () if spec else ():
            for file in Path(root).rglob("*.py"):
                yield str(Path(package) / file.relative_to(root)), file


def _digest(sources: list[tuple[str, Path]]) -> str:
    digest = hashlib.sha256()
    for name, file in sources:
        digest.update(name.encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()[:12]
