"""Kafka's own command-line tools (Java) against the broker and against the files it writes.

They need Kafka's jars (Maven Central) and Java, and skip with the reason where these cannot be had. As in
`tests/clients`, `CLARION_TEST_PEER=kafka` points them at Apache Kafka instead, to show that a test asks nothing that
Kafka would not do.
"""
