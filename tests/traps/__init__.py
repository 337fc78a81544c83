"""The traps of the protocol that have broken real brokers, each told as a story at the level of single requests.

`CLARION_TEST_PEER=kafka` runs them against Apache Kafka.
"""
