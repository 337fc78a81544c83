"""Found by Spark on the Python path: makes the format `clarion` known without a registration."""

from clarion.pipeline.source.data_source import ClarionSource as DefaultSource

__all__ = ["DefaultSource"]
