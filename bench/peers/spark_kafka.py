"""Spark's own Kafka connector: four jars from Maven Central for `spark.jars`. Everything else comes with pyspark."""

from __future__ import annotations

from bench.peers.maven import Jars
from bench.peers.process import ROOT

_DOWNLOAD_WITHIN_S = 120  # about 11 MB
_ARTIFACTS = (  # these work together under pyspark 4.3.0; newer ones could not be had
    ("org.apache.spark", "spark-sql-kafka-0-10_2.13", "4.2.0"),
    ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.0.0"),
    ("org.apache.kafka", "kafka-clients", "3.9.1"),
    ("org.apache.commons", "commons-pool2", "2.12.1"),
)
_STORE = Jars(
    "Spark's Kafka connector", ROOT / ".cache" / "spark-kafka-4.2.0", _ARTIFACTS, within_s=_DOWNLOAD_WITHIN_S,
    alone=True,
)  # fmt: skip


def spark_jars() -> str:
    """The value of `spark.jars`; PeerUnavailable says why there is none."""
    return ",".join(map(str, _STORE.paths()))
