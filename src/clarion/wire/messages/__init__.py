"""Neutral forms of Kafka's messages: one module per API, one class per message, whatever the version.

A class carries the union of the fields of every version we speak, under kio's names; a field that some version lacks
has a default. Values are plain: int (times in milliseconds), str, bytes, bool, UUID (all zero for null), tuple.
`wire.bridge` turns them into bytes of a version and back. Nothing here decides anything.
"""
