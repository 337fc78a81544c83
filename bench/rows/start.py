"""A first start on an empty folder: time from the process's start to the first acknowledged message of a new topic, and
the memory it then holds with nothing to do."""

from __future__ import annotations

import struct
import time

from bench import frames
from bench.arena import Arena
from bench.experiment import Experiment, Sample
from bench.load.admin import KafkaAdmin, NatsAdmin
from bench.peers.process import ServerProcess
from bench.sizes import Sizes

_SETTLE_S = 1.0


def experiments(sizes: Sizes) -> list[Experiment]:
    return [
        Experiment(
            id="start", title="process start → first acknowledged message", acks="1", durability="page-cache, new",
            metrics=("first_ack_s",), measure=_measure,
        ),
        Experiment(
            id="idle-memory", title="resident memory, idle after a first message", acks="–",
            durability="page-cache, new", metrics=("idle_mb",), measure=_measure, rounds_max=1,
        ),
    ]  # fmt: skip


def _measure(arena: Arena, peer: str) -> Sample:
    with arena.fresh(peer) as server:
        server.start()
        first_message(server)
        first_ack_s = time.perf_counter() - server.started_at
        time.sleep(_SETTLE_S)
        return {"first_ack_s": first_ack_s, "ready_s": server.ready_s, "idle_mb": server.rss_bytes() / 1e6}


def first_message(server: ServerProcess) -> None:
    """Makes a topic and has one message acknowledged."""
    if server.name == "nats":
        nats = NatsAdmin(server.address)
        nats.create("first")
        nats.connection.request("first", frames.value(100))
        return nats.close()
    kafka = KafkaAdmin(server.address)
    kafka.create("first")
    acknowledge_one(kafka, "first", 0)
    kafka.close()


def acknowledge_one(admin: KafkaAdmin, topic: str, partition: int) -> None:
    batch = frames.batch_of(100, 1, int(time.time() * 1000))
    reply = admin.ask(frames.produce(topic, partition, batch.data, 1))
    # correlation, tags, array, name, array, partition index; then the error
    (error,) = struct.unpack_from(">h", reply, 4 + 1 + 1 + 1 + len(topic) + 1 + 4)
    if error:
        raise RuntimeError(f"the first message was refused: error {error}")
