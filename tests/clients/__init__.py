"""Real clients against a real broker: one list of scenarios, written once, run by every client that can express it.

The scenarios describe what Apache Kafka does; `CLARION_TEST_PEER=kafka pytest tests/clients` runs the very same list
against Apache Kafka (where its jars and Java can be had), which is how a scenario is shown to be right. The default is
Clarion. What only Clarion does is marked so.
"""
