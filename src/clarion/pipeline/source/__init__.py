"""Topics as DataFrames: the reading half of the format `clarion`, batch and streaming.

The driver decides which offsets make up a batch (`positions`, `admission`, `offsets`) and how they are shared out among
tasks (`planning`); executors fetch them and hand Arrow batches to Spark (`rows`). It needs pyspark, pyarrow and numpy.
It never joins a group: Spark's checkpoint is the truth about progress, and group offsets are written only so that lag
can be seen.
"""
