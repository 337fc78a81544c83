"""Kafka's protocol without I/O: frames, record batches, hot codecs, and a bridge for all other messages.

Bytes in, values out, and back. Every length is checked against the bytes that remain; what cannot be read raises
MalformedError (the peer's framing is broken) or KafkaError (the framing is sound, the content is refused).
This room never opens a socket or a file.
"""
