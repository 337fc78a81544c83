"""A small blocking Kafka client for Spark's executors: whole fetches to Arrow columns, Arrow columns to record batches.

It imports the standard library, numpy and pyarrow, and of Clarion what needs no more (`model`, fields of `wire`),
because that is all an executor has; `crc32c` is used where it happens to be there. Versions of the APIs are fixed (each
module says which): Clarion and Kafka 3.1 or newer speak them. It deliberately never joins a group, never decodes a
message into Python objects one by one, and knows nothing of Spark.
"""
