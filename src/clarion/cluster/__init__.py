"""The cluster manager's registry of brokers and topics, over a coordination store."""
