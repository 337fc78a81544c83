"""DataFrames into topics: the writing half of the format `clarion`, batch and streaming.

Rows become messages by column (`key`, `value`, `headers`, `topic`, `partition`, `timestamp`), whole Arrow batches at a
time. Delivery is at least once: a retry inside a task writes nothing twice, but a task or a micro-batch that Spark runs
again is written again.
"""
