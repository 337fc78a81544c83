"""The traps of the protocol that have broken real brokers, each told as a story at the level of single requests.

`CLARION_TEST_PEER=kafka` runs them against Apache Kafka, except where Kafka itself has only just climbed out of the trap.
"""
