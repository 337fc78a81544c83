"""Clarion: a durable, log-based publish-subscribe broker that speaks Kafka's wire protocol."""

__version__ = "0.1.0"
