"""The sink's options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from clarion.model.errors import KafkaError
from clarion.model.names import check_topic_name
from clarion.pipeline.connector_options import Options, client_settings
from clarion.pipeline.kafka.compression import CODES
from clarion.pipeline.kafka.producer import ProducerSettings
from clarion.pipeline.kafka.settings import ClientSettings

SINK_NAMES: Final = ("topic", "includeHeaders")  # headers are written wherever there is the column
SINK_CLIENT_NAMES: Final = (
    "compression.type", "max.request.size", "batch.size", "delivery.timeout.ms", "acks", "enable.idempotence",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class SinkSettings:
    client: ClientSettings
    topic: str | None  # for all rows; it goes before a column `topic`
    producer: ProducerSettings


def sink_settings(given: Mapping[str, str]) -> SinkSettings:
    options = Options(given, SINK_NAMES, SINK_CLIENT_NAMES)
    client = client_settings(options)
    # Idempotent writing needs both; whoever asks for less should know that it cannot be had.
    options.choice("acks", {"all": True, "-1": True}, True)
    options.choice("enable.idempotence", {"true": True}, True)
    defaults = ProducerSettings()
    request_bytes_max = options.number("max.request.size", defaults.request_bytes_max)
    return SinkSettings(
        client=client,
        topic=options.read("topic", _topic, None),
        producer=ProducerSettings(
            compression=options.choice("compression.type", CODES, CODES["none"]),
            batch_bytes_max=min(options.number("batch.size", defaults.batch_bytes_max), request_bytes_max),
            request_bytes_max=request_bytes_max,
            request_timeout_ms=client.request_timeout_ms,
            delivery_timeout_ms=options.number("delivery.timeout.ms", defaults.delivery_timeout_ms),
        ),
    )


def _topic(text: str) -> str | None:
    try:
        check_topic_name(text)
    except KafkaError as error:
        raise ValueError(str(error)) from None
    return text
