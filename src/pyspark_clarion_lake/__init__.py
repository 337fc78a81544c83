"""Found by Spark on the Python path: makes the format `clarion-lake` known without a registration."""

from clarion.pipeline.lake.sink import LakeSource as DefaultSource

__all__ = ["DefaultSource"]
