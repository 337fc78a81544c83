"""The Python client: topics, messages and subscriptions in six verbs, blocking (`Bus`) or with asyncio (`AsyncBus`).

    with clarion.connect("127.0.0.1:9092") as bus:
        bus.create("orders", partitions=3)
        bus.write("orders", b"...", key=b"42")

Writes and stream reads stand on confluent-kafka. Queue reads speak the share groups' protocol over `net.channel`, with
what Kafka leaves out (delay, reason, extension) beside it. Subscriptions are made over HTTP, at the address that the
broker's settings tell. The blocking client runs the same code in a thread with an event loop of its own.
This room meets brokers over the wire alone, and imports nothing of theirs.
"""
