"""The command line: the composition root of a broker, and the tools people use against one.

`serve` puts a broker together from settings; every other command is an ordinary Kafka client (confluent-kafka) and
works against any broker that speaks the protocol. Modules import only what `serve` may import: Rich and confluent-kafka
are imported inside the functions that need them, so that a broker is ready in well under a second. This room never
decides anything a broker decides.

Words: a *link* is how a command reaches a broker; a *row* is one line of a table, the same data in a terminal and
in `--json`; *settings* are what `serve` is told.
"""
