"""What the stories of queues say again and again."""

from __future__ import annotations

import time
from collections.abc import Callable

from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from clarion.client.reading import MessageReading
from clarion.client.received import ReceivedMessage

PATIENCE_SECONDS = 60.0


def queue_settings(bootstrap: str, group: str, **settings: object) -> None:
    """Of a group that no subscription was made for: it begins at the start, unless it is said otherwise."""
    wanted = {
        "share.auto.offset.reset": "earliest",
        **{f"share.{name}".replace("_", "."): settings[name] for name in settings},
    }
    entries = [
        ConfigEntry(name, str(value), incremental_operation=AlterConfigOpType.SET) for name, value in wanted.items()
    ]
    resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=entries)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.incremental_alter_configs([resource])[resource].result()


def take(reading: MessageReading, count: int) -> list[ReceivedMessage]:
    """So many messages, in the order in which they come."""
    found: list[ReceivedMessage] = []
    deadline = time.monotonic() + PATIENCE_SECONDS
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count} messages came"
        found += reading.batch(count - len(found), timeout=1)
    return found


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
