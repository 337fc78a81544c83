"""Applications that write numbers to a topic and read them in a group, all the time, one for each client library.

Each uses its library as its documentation shows, with the settings that it has by itself, and notes every error that
it gets to hear. What a library retries in silence is no error.
"""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import aiokafka
import confluent_kafka
import kafka
from bench.peers.kafka import tool_command

PATIENCE_SECONDS = 120
GAP_SECONDS = 0.01  # between two messages
UNDER_WAY_MAX = 200  # messages without an acknowledgement: who waits longer than two seconds writes no more


class Application(ABC):
    """Between `start` and `stop`; `written` are acknowledged."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.bootstrap = bootstrap
        self.topic = topic
        self.errors: list[str] = []

    @property
    def name(self) -> str:
        return type(self).__name__

    @property
    @abstractmethod
    def written(self) -> set[int]: ...

    @property
    @abstractmethod
    def read(self) -> set[int]: ...

    @abstractmethod
    def start(self) -> None: ...

    @abstractmethod
    def stop_writing(self) -> None:
        """Returns when every message is acknowledged."""

    @abstractmethod
    def stop(self) -> None: ...


class Threaded(Application):
    """A thread that writes and one that reads."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__(bootstrap, topic)
        self._written: set[int] = set()
        self._read: set[int] = set()
        self._is_writing, self._is_reading = True, True
        self._threads = {one: threading.Thread(target=self._guarded, args=(one,)) for one in (self.write, self.consume)}

    @property
    def written(self) -> set[int]:
        return self._written.copy()

    @property
    def read(self) -> set[int]:
        return self._read.copy()

    def start(self) -> None:
        for thread in self._threads.values():
            thread.daemon = True
            thread.start()

    def stop_writing(self) -> None:
        self._is_writing = False
        self._join(self._threads[self.write])

    def stop(self) -> None:
        self._is_reading = False
        self._join(self._threads[self.consume])

    def _join(self, thread: threading.Thread) -> None:
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive(), f"{self.name} does not end"

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            self.errors.append(f"{work.__name__}: {type(error).__name__}: {error}")

    def write(self) -> None:
        raise NotImplementedError

    def consume(self) -> None:
        raise NotImplementedError


class Confluent(Threaded):
    def write(self) -> None:
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": self.bootstrap, "enable.idempotence": True, "log_level": 0}
        )
        number = 0
        while self._is_writing:
            if len(producer) < UNDER_WAY_MAX:
                producer.produce(self.topic, str(number), on_delivery=self._on_delivery)
                number += 1
            producer.poll(GAP_SECONDS)
        if left := producer.flush(PATIENCE_SECONDS):
            self.errors.append(f"{left} messages without an answer")

    def _on_delivery(self, error: object, message: confluent_kafka.Message) -> None:
        if error is not None:
            self.errors.append(f"delivery: {error}")
        else:
            self._written.add(int(message.value() or b""))

    def consume(self) -> None:
        settings = {"bootstrap.servers": self.bootstrap, "group.id": self.topic, "auto.offset.reset": "earliest"}
        consumer = confluent_kafka.Consumer({**settings, "log_level": 0, "enable.auto.commit": False})
        consumer.subscribe([self.topic])
        while self._is_reading:
            message = consumer.poll(0.1)
            if message is not None and message.error() is not None:
                self.errors.append(f"poll: {message.error()}")
            elif message is not None:
                self._read.add(int(message.value() or b""))
                consumer.commit(message, asynchronous=True)
        consumer.close()


class KafkaPython(Threaded):
    def write(self) -> None:
        producer = kafka.KafkaProducer(bootstrap_servers=self.bootstrap.split(","))
        number, under_way = 0, threading.Semaphore(UNDER_WAY_MAX)

        def acknowledged(one: int) -> None:
            self._written.add(one)
            under_way.release()

        def failed(error: BaseException) -> None:
            self.errors.append(f"delivery: {type(error).__name__}: {error}")
            under_way.release()

        while self._is_writing:
            threading.Event().wait(GAP_SECONDS)
            if under_way.acquire(timeout=0.1):
                sent = producer.send(self.topic, str(number).encode())
                sent.add_callback(lambda _, one=number: acknowledged(one))
                sent.add_errback(failed)
                number += 1
        producer.flush(timeout=PATIENCE_SECONDS)
        producer.close()

    def consume(self) -> None:
        # 3.0.12 loses its assignment when a poll's time runs out between SyncGroup and its answer. It may assign
        # before it knows the topic, and lose the refresh that would tell. With any broker: long polls, young metadata.
        consumer = kafka.KafkaConsumer(
            self.topic,
            bootstrap_servers=self.bootstrap.split(","),
            group_id=self.topic,
            auto_offset_reset="earliest",
            metadata_max_age_ms=1000,
        )
        while self._is_reading:
            for messages in consumer.poll(timeout_ms=2000).values():
                self._read.update(int(one.value) for one in messages)
        consumer.close()


class Aiokafka(Threaded):
    def write(self) -> None:
        asyncio.run(self._write())

    def consume(self) -> None:
        asyncio.run(self._consume())

    async def _write(self) -> None:
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=self.bootstrap, enable_idempotence=True)
        await producer.start()
        number = 0
        under_way: set[asyncio.Task[None]] = set()
        while self._is_writing:
            if len(under_way) < UNDER_WAY_MAX:
                task = asyncio.ensure_future(self._send(producer, number))
                under_way.add(task)
                task.add_done_callback(under_way.discard)
                number += 1
            await asyncio.sleep(GAP_SECONDS)
        await asyncio.gather(*under_way)
        await producer.stop()

    async def _send(self, producer: aiokafka.AIOKafkaProducer, number: int) -> None:
        try:
            await producer.send_and_wait(self.topic, str(number).encode())
            self._written.add(number)
        except Exception as error:
            self.errors.append(f"delivery: {type(error).__name__}: {error}")

    async def _consume(self) -> None:
        consumer = aiokafka.AIOKafkaConsumer(
            self.topic, bootstrap_servers=self.bootstrap, group_id=self.topic, auto_offset_reset="earliest"
        )
        await consumer.start()
        while self._is_reading:
            found = await consumer.getmany(timeout_ms=500)
            self._read.update(int(one.value) for messages in found.values() for one in messages)
        await consumer.stop()


class Java(Application):
    """Kafka's own VerifiableProducer and VerifiableConsumer, which tell line by line what they do."""

    def __init__(self, bootstrap: str, topic: str, folder: Path) -> None:
        super().__init__(bootstrap, topic)
        self._outputs = {one: folder / f"java-{one}.out" for one in ("producer", "consumer")}
        self._settings = folder / "java-producer.properties"
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        where = ["--bootstrap-server", self.bootstrap, "--topic", self.topic]
        per_second = str(round(1 / GAP_SECONDS))
        # The tool tries nothing twice by itself; the library does, unless it is told otherwise.
        self._settings.write_text("retries=2147483647\nenable.idempotence=true\n")
        how = ["--throughput", per_second, "--acks", "-1", "--command-config", str(self._settings)]
        self._run("producer", "VerifiableProducer", [*where, *how])
        self._run("consumer", "VerifiableConsumer", [*where, "--group-id", self.topic, "--verbose"])

    def stop_writing(self) -> None:
        self._end("producer")

    def stop(self) -> None:
        self._end("consumer")
        names = [event["name"] for event in self._events("consumer")]
        if names[-1] != "shutdown_complete":
            self.errors.append(f"consumer: it ended with {names[-1]}")

    @property
    def written(self) -> set[int]:
        return {int(event["value"]) for event in self._events("producer") if event["name"] == "producer_send_success"}

    @property
    def read(self) -> set[int]:
        return {int(event["value"]) for event in self._events("consumer") if event["name"] == "record_data"}

    def _run(self, role: str, tool: str, words: list[str]) -> None:
        with self._outputs[role].open("wb") as output:
            command = tool_command(f"org.apache.kafka.tools.{tool}", words)
            self._processes[role] = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)

    def _end(self, role: str) -> None:
        process = self._processes.pop(role)
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            self.errors.append(f"{role}: it did not end")
        self.errors += [f"{role}: {event}" for event in self._events(role) if _is_error(event)]

    def kill(self) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait()

    def _events(self, role: str) -> list[Mapping[str, Any]]:
        whole = self._outputs[role].read_text().rpartition("\n")[0]
        return [json.loads(line) for line in whole.splitlines() if line.startswith("{")]


def _is_error(event: Mapping[str, Any]) -> bool:
    return event["name"] == "producer_send_error" or event.get("success") is False
