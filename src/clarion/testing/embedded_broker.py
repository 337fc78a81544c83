"""`embedded()`: a real broker on a real socket inside this process, on a temporary directory, up in milliseconds."""

from __future__ import annotations

import asyncio
import atexit
import itertools
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from clarion.broker.broker import Broker
from clarion.broker.config import ListenerConfig
from clarion.broker.settings import broker_config
from clarion.model.errors import KafkaError
from clarion.model.ids import TopicPartition
from clarion.model.names import is_internal
from clarion.testing import content
from clarion.testing.broker_thread import BrokerThread
from clarion.testing.clock import ShiftedClock
from clarion.testing.content import Headers, Message
from clarion.testing.errors import BrokerDownError, BrokerFailedError
from clarion.testing.faults import Faults
from clarion.testing.journal import Event, Journal
from clarion.testing.options import Topics, broker_options, topic_settings, topic_sizes
from clarion.testing.place import HOST, Place
from clarion.testing.waiting import Value, blocked_loop, wait_until, wait_until_async

Result = TypeVar("Result")

__tracebackhide__: Final = True  # by pytest: what went wrong is in the test, or named by the error
_numbers = itertools.count(1)
_started: Final[set[EmbeddedBroker]] = set()  # a broker lives until it is closed, also if nobody holds it any longer


@atexit.register
def _close_all() -> None:
    """What a script has not closed itself."""
    for broker in list(_started):
        broker.close()


def embedded(
    *,
    topics: Topics = (),
    settings: Mapping[str, object] | None = None,
    durability: str = "page-cache",
    data_dir: str | Path | None = None,
    listen_port: int = 0,
    **config: Any,
) -> EmbeddedBroker:
    """A broker that runs as long as the block: `with embedded() as broker:`, or `async with`.

    topics: names, or names with their numbers of partitions; others are made when a client asks for them.
    settings: what topics have unless they say otherwise, by Kafka's names: `{"retention.ms": 1000}`.
    durability: "fsync" waits for the disk before it acknowledges; "page-cache" is quicker.
    data_dir: kept afterwards; without it the data lies in memory and goes with the broker.
    config: any other setting of a broker, its name with `_` for `.`: `num_partitions=3`; or a field of `BrokerConfig`.
    """
    return EmbeddedBroker(
        topics=topics,
        settings=settings or {},
        durability=durability,
        data_dir=data_dir,
        listen_port=listen_port,
        config=config,
    )


class EmbeddedBroker:
    """Made by `embedded`. Its methods may be called from any thread."""

    def __init__(
        self,
        *,
        topics: Topics,
        settings: Mapping[str, object],
        durability: str,
        data_dir: str | Path | None,
        listen_port: int,
        config: Mapping[str, Any],
    ) -> None:
        self._topics = topic_sizes(topics)
        self._options = broker_options(durability, settings, config)
        self._wanted = data_dir, listen_port
        self._name = f"clarion-embedded-{next(_numbers)}"
        self._journal = Journal(self._name)
        self._place: Place | None = None
        self._life: BrokerThread | None = None
        self.clock = ShiftedClock()
        self.clock.on_shift = self._trust_clock
        self.faults = Faults(lambda: self._life)

    # Where it is

    @property
    def bootstrap(self) -> str:
        """What clients call `bootstrap.servers`."""
        return f"{self.host}:{self.port}"

    @property
    def host(self) -> str:
        return HOST

    @property
    def port(self) -> int:
        """Kept over restarts."""
        return self._placed().port

    @property
    def http_url(self) -> str:
        """Where the HTTP API is: of `embedded(metrics_port=0)`."""
        address = self._living().server.metrics_address
        if address is None:
            raise BrokerDownError("the broker has no HTTP port: embedded(metrics_port=0) gives it a free one")
        return f"http://{address.host}:{address.port}"

    @property
    def data_dir(self) -> Path:
        return self._placed().data_dir

    def _placed(self) -> Place:
        if self._place is None:
            raise BrokerDownError("the broker has not been started: use `with embedded() as broker:`")
        return self._place

    @property
    def is_running(self) -> bool:
        return self._life is not None and not self._life.is_over

    # Its life

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
        self._tell_failures(error)

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.start)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.close)
        self._tell_failures(error)

    def start(self) -> Self:
        """Begin, or begin again after `stop` or `kill` with the same data on the same port."""
        if self._life is not None:
            raise RuntimeError("the broker runs already")
        is_first = self._place is None
        try:
            self._start()
            if is_first:
                self._make_topics()
        except BaseException:
            if is_first:
                self.close()  # nobody else will: the `with` block is not entered
            raise
        return self

    def _start(self) -> None:
        if self._place is None:
            self._place = Place(*self._wanted)
            self._journal = Journal(self._name)
            self._journal.open()
            _started.add(self)
        listener = ListenerConfig(HOST, self._place.port)
        config = broker_config(str(self._place.data_dir), listeners=(listener,), **self._options)
        life = BrokerThread(
            self._name, config, self.clock, self.faults.disk_faults, self.faults.requests, self._journal
        )
        life.start()
        self._life = life
        self._place.port = life.server.addresses[0].port

    def stop(self) -> None:
        """End cleanly; data and port are kept for `start`."""
        life, self._life = self._life, None
        self.faults.end_with_life()
        if life is not None:
            life.stop()

    def kill(self) -> None:
        """End as after kill -9; `start` or `restart` recovers from what the kernel was given."""
        life, self._life = self._life, None
        if life is not None:
            life.begin_kill()
        self.faults.end_with_life()
        if life is not None:
            life.kill()

    def restart(self) -> Self:
        """Stop cleanly, unless it is down already, and start with the same data on the same port."""
        self.stop()
        return self.start()

    def close(self) -> None:
        """End for good; a temporary directory goes too. Called when the `with` block is left."""
        with ExitStack() as ending:
            ending.callback(self._give_back)
            ending.callback(self.stop)
            self.faults.clear()

    def _give_back(self) -> None:
        self._journal.close()
        _started.discard(self)
        if self._place is not None:
            self._place.give_back()
            self._place = None

    def _make_topics(self) -> None:
        known = self.topics()
        for name, partitions in self._topics.items():
            if name not in known:
                self.create_topic(name, partitions)

    def _trust_clock(self) -> None:
        if self._life is not None:
            self._life.soon(self._life.trust_clock)

    # Topics and messages

    def create_topic(self, name: str, partitions: int = 1, **settings: object) -> None:
        """Settings by Kafka's names, with underscores for dots: `create_topic("t", 3, retention_ms=1000)`."""
        content.check_type("the name of a topic", name, str)
        content.check_type("partitions", partitions, int)
        overrides = topic_settings(settings)
        self._run(lambda broker: broker.create_topic(name, partitions, overrides))

    def delete_topic(self, name: str) -> None:
        self._run(lambda broker: broker.delete_topic(name))

    def topics(self) -> dict[str, int]:
        """Names and numbers of partitions, without internal topics."""
        return self._call(
            lambda broker: {
                one.name: one.partition_count for one in broker.image.topics.values() if not is_internal(one.name)
            }
        )

    def produce(
        self,
        topic: str,
        value: bytes | str | None,
        key: bytes | str | None = None,
        headers: Headers | None = None,
        partition: int = 0,
        timestamp: int | None = None,
    ) -> int:
        """Append one message without any client; returns its offset. The time is the broker's unless given, in ms."""
        content.check_type("topic", topic, str)
        content.check_type("partition", partition, int)
        if timestamp is not None:
            content.check_type("timestamp", timestamp, int)
        made = content.as_bytes(key, "key"), content.as_bytes(value, "value"), content.as_headers(headers)
        offset: int = self._run(lambda broker: content.write(broker, topic, partition, *made, timestamp))
        return offset

    def produce_json(self, topic: str, value: object, key: bytes | str | None = None, **options: Any) -> int:
        """`produce` with anything that JSON knows as its value; `message.json()` reads it again."""
        return self.produce(topic, content.as_json(value), key, **options)

    def messages(self, topic: str, partition: int | None = None) -> list[Message]:
        """Every message that a reader could see now, partition by partition, without any client."""
        found: list[Message] = self._run(lambda broker: content.read(broker, topic, partition))
        return found

    def committed(self, group: str) -> dict[tuple[str, int], int]:
        """How far a group has read, by what it has committed."""

        def find(broker: Broker) -> dict[tuple[str, int], int]:
            found: Iterable[tuple[str, TopicPartition, int]] = broker.groups.committed()
            return {(tp.topic, tp.partition): offset for group_id, tp, offset in found if group_id == group}

        return self._call(find)

    # Time

    def run_housekeeping(self) -> None:
        """Do now what happens by itself every so often: retention, compaction, checkpoints, expiry.

        Compaction leaves a topic's newest segment alone; here that is closed first, so that all of it is compacted.
        """
        life = self._living()
        life.run(lambda: _keep_house(life))

    # Waiting

    def wait_for(self, condition: Callable[[], Value], timeout: float = 10.0) -> Value:
        """Call `condition` until it answers something true, and return that. TimeoutError if it does not."""
        return wait_until(condition, timeout, self._check_alive)

    async def wait_for_async(self, condition: Callable[[], Value], timeout: float = 10.0) -> Value:  # noqa: ASYNC109
        """`wait_for` while the test's own loop goes on."""
        return await wait_until_async(condition, timeout, self._check_alive)

    def wait_for_messages(self, topic: str, count: int, timeout: float = 10.0) -> list[Message]:
        """Wait until the topic has so many messages at least, and return them all."""
        try:
            self.wait_for(lambda: self._count(topic) >= count, timeout)
        except TimeoutError:
            raise TimeoutError(self._too_few(topic, count, timeout) + blocked_loop()) from None
        return self.messages(topic)

    async def wait_for_messages_async(
        self,
        topic: str,
        count: int,
        timeout: float = 10.0,  # noqa: ASYNC109
    ) -> list[Message]:
        try:
            await self.wait_for_async(lambda: self._count(topic) >= count, timeout)
        except TimeoutError:
            raise TimeoutError(self._too_few(topic, count, timeout)) from None
        return self.messages(topic)

    def _count(self, topic: str) -> int:
        return self._call(lambda broker: content.count(broker, topic))

    def _too_few(self, topic: str, count: int, timeout: float) -> str:
        return f"after {timeout} s {topic!r} has {self._count(topic)} messages, not {count}"

    # What it says

    @property
    def events(self) -> list[Event]:
        """What the broker has logged so far, at level INFO and above."""
        return self._journal.events

    @property
    def failures(self) -> list[BaseException]:
        """Errors inside the broker that nobody has ordered; leaving the `with` block raises them."""
        return list(self._journal.failures)

    def _tell_failures(self, error: BaseException | None) -> None:
        failures = self.failures
        if not failures:
            return
        if error is None:
            raise BrokerFailedError(failures)
        error.add_note(str(BrokerFailedError(failures)))

    def _check_alive(self) -> None:
        if self._life is not None and self._life.is_over:
            raise BrokerFailedError(self.failures or [RuntimeError("its thread has ended")])

    # On the broker's loop

    def _living(self) -> BrokerThread:
        self._check_alive()
        if self._life is None:
            raise BrokerDownError("the broker is down: `start()` or `restart()` brings it back")
        if self.faults.is_frozen:
            raise BrokerDownError("the broker is frozen: end that fault first")
        return self._life

    def _call(self, function: Callable[[Broker], Result]) -> Result:
        return self._living().call(lambda life: function(life.server.broker))

    def _run(self, function: Callable[[Broker], Any]) -> Any:
        life = self._living()
        try:
            return life.run(lambda: function(life.server.broker))
        except KafkaError as error:
            raise error.with_traceback(None) from error.__cause__  # where in the broker is of no use to a test

    def __repr__(self) -> str:
        state = f"on {self.bootstrap}" if self.is_running else "down"
        return f"<EmbeddedBroker {state}>"


async def _keep_house(life: BrokerThread) -> None:
    server = life.server
    life.trust_clock()
    await server.housekeeping.retain()
    for partition in server.broker.partitions:
        if partition.settings.is_compacted and partition.failure is None:
            partition.roll(server.broker.clock.now_ms())
            partition.flush_soon()
    while any(one.is_flushing for one in server.broker.partitions):  # noqa: ASYNC110  # compaction waits for flushes
        await asyncio.sleep(0.001)
    await server.housekeeping.compact()
    await server.housekeeping.save_checkpoints()
    await server.housekeeping.expire()
