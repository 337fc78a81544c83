"""The embedded broker and its faults, as users of confluent-kafka, kafka-python and aiokafka see them."""
