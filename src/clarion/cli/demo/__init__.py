"""`clarion demo`: a broker at work, seen live and counted to the last message.

`command` directs, `clients` publish and read, `ledger` counts what each of them saw, `screen` shows it, `spark` adds
the pipelines of `pipelines` where Spark is there.
"""
