"""The benchmark harness: Clarion beside Apache Kafka and NATS JetStream, in one run on one machine.

`peers` starts and stops the servers, `load` makes the traffic, `rows` are the questions asked, `report` writes the
answers. Nothing here is imported by the broker. See docs/benchmarks.md for what each row means.
"""
