"""One push subscription on one broker: messages are pulled from its queue, sent to its endpoint, and settled.

    pull ──▶ held: waiting in a lane ──▶ under way ──2xx──▶ ack
                     ▲                       └─else──▶ release, with a delay and the reason
                     └── no more than the window, the circuit and the bytes allow

Where a message is in this is the queue's to know: a broker that ends loses nothing, and whoever leads the partition
next delivers what was not settled, under the same key. With `at-most-once` a message is acknowledged before it is sent.

Each subscription has its own tasks, connections and limits, and waits for no other: an endpoint that hangs holds its
own window, and that is small by then. Of what all share (`PushRoom`) everybody may have one request in any case. All of
it together takes a bounded part of the event loop, as the HTTP API does (`loop_share`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from clarion.broker.authorizer import Principal
from clarion.broker.queues import MESSAGES_MAX, Delivery, Settlement
from clarion.broker.threads import in_thread
from clarion.consumers.cloud_events import Webhook, batch_webhook, single_webhook
from clarion.consumers.push import Circuit, CircuitState, Lanes, PushOutcome, Window, retry_delay_ms
from clarion.gateway.loop_share import Metered
from clarion.gateway.push_room import PushRoom
from clarion.gateway.push_settler import Settler
from clarion.gateway.webhooks import EndpointAnswer, WebhookClient
from clarion.model.errors import ErrorCode, KafkaError
from clarion.model.subscription import AT_MOST_ONCE, Subscription
from clarion.world import event_log
from clarion.world.events import Repeats
from clarion.world.tasks import start_task

if TYPE_CHECKING:
    from clarion.broker.broker import Broker
    from clarion.broker.endpoint_health import EndpointHealth

log = event_log("gateway")

PUSHER: Final = Principal("User", "clarion-push")  # as whom the broker reads for push subscriptions
_WAIT_MS: Final = 2_000  # for messages, at a time
_OVER_MS: Final = 100  # after which it is seen whether the loop has time again
_PAUSE_SECONDS: Final = (0.1, 5.0)  # after a pull that was refused: the first, and the longest
_INLINE_BYTES_MAX: Final = 64 * 1024  # what is more is written as a webhook in a thread: it takes a millisecond
_MESSAGE_BYTES: Final = 500  # what a message costs beside its key and value


class _Sending(NamedTuple):
    """What goes in one request."""

    messages: list[Delivery]
    lanes: list[object]
    is_probe: bool


class Pusher:
    def __init__(
        self, broker: Broker, subscription: Subscription, client: WebhookClient, health: EndpointHealth, room: PushRoom
    ) -> None:
        assert subscription.push is not None
        self._broker = broker
        self._subscription = subscription
        self._endpoint = subscription.push
        self._client = client
        self._health = health
        self._room = room
        self._circuit = Circuit()
        self._window = Window(subscription.window)
        self._lanes: Lanes[Delivery] = Lanes(self._goes_alone)
        self._held: dict[str, Delivery] = {}  # by receipt: waiting or under way
        self._held_bytes = 0
        self._under_way: dict[asyncio.Task[None], None] = {}
        self._news = asyncio.Event()
        self._settler = Settler(broker, subscription.name, PUSHER)
        self._repeats = Repeats()
        self._is_stopping = False
        self._loop = asyncio.get_running_loop()
        self._tasks = [
            start_task(self._metered(self._run()), f"push of {subscription.name}"),
            start_task(self._keep_locks(), f"locks of {subscription.name}"),
        ]

    @property
    def subscription(self) -> Subscription:
        return self._subscription

    async def stop(self, drain_seconds: float) -> None:
        """What is under way may end; what is not sent goes back to the queue."""
        self._is_stopping = True
        self._tasks[0].cancel()
        self._return_unsent(self._lanes.clear())
        if self._under_way and drain_seconds > 0:
            await asyncio.wait(self._under_way, timeout=drain_seconds)
        for task in list(self._under_way):
            task.cancel()
        await asyncio.gather(*self._tasks[:1], *self._under_way, return_exceptions=True)
        self._room.requests -= len(self._under_way)  # those that were cancelled before they began
        self._return_unsent([*self._held.values()])
        await self._settler.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._client.close()

    def abandon(self) -> None:
        for task in [*self._tasks, *self._under_way]:
            task.cancel()
        self._settler.abandon()

    # Pulling

    async def _run(self) -> None:
        pause, longest = _PAUSE_SECONDS
        while True:
            self._news.clear()
            self._send()
            wanted = self._wanted()
            if not wanted:
                await self._wait()
                continue
            try:
                await self._pull(wanted)
                pause = _PAUSE_SECONDS[0]
            except KafkaError as error:
                self._say("push_cannot_read", reason=error.message or error.code.name)
                await asyncio.sleep(pause)
                pause = min(pause * 2, longest)
            except Exception as error:  # a mistake of ours, which must not end the subscription's pushing for good
                log.error("push_cannot_read", subscription=self._subscription.name, error=error)
                await asyncio.sleep(longest)

    def _wanted(self) -> int:
        """How many messages may be pulled: for the requests that may be sent now, and no more."""
        if self._lanes.has_ready:
            return 0  # they would have been sent if they could
        if not self._circuit.may_send(self._now_ms()) or not self._room.has_bytes_for(self._held_bytes):
            return 0
        if self._room.loop_share.is_over or not self._room.has_request_for(len(self._under_way)):
            return 0
        requests = 1 if self._circuit.state is not CircuitState.CLOSED else self._window.size
        return min(max(0, requests * self._endpoint.batch_max - len(self._held)), MESSAGES_MAX)

    async def _pull(self, wanted: int) -> None:
        found = await self._broker.queues.pull(
            PUSHER,
            self._subscription.name,
            consumer=f"push-{self._broker.node_id}",
            messages_max=wanted,
            wait_ms=_WAIT_MS,
        )
        if found and self._subscription.guarantee == AT_MOST_ONCE:
            found = await self._acknowledged(found)
        is_ordered = self._subscription.keeps_key_order
        for message in found:
            self._hold(message)
            ordered_by = (
                (message.topic_id, message.partition, message.key) if is_ordered and message.key is not None else None
            )
            self._lanes.add(message, ordered_by)

    async def _acknowledged(self, found: Sequence[Delivery]) -> list[Delivery]:
        """Those that are this broker's to send, once: an acknowledgement that failed is somebody else's message."""
        results = await self._broker.queues.settle(
            PUSHER, self._subscription.name, [Settlement(one.receipt, "ack") for one in found]
        )
        return [one for one, result in zip(found, results, strict=True) if result.code is ErrorCode.NONE]

    async def _wait(self) -> None:
        """Until something has ended, the endpoint may be sent to again, or the loop has time for it."""
        rest_ms = self._circuit.opens_in_ms(self._now_ms()) or None
        if self._room.loop_share.is_over:
            rest_ms = max(rest_ms or 0, _OVER_MS)
        self._room.tell_when_free(self._news)
        try:
            async with asyncio.timeout(None if rest_ms is None else rest_ms / 1000):
                await self._news.wait()
        except TimeoutError:
            return

    # Sending

    def _send(self) -> None:
        """Begin as many requests as may be under way."""
        while self._may_begin():
            is_probe = self._circuit.begin(self._now_ms())
            messages, lanes = self._lanes.take(self._endpoint.batch_max)
            self._room.requests += 1
            work = self._metered(self._deliver(_Sending(messages, lanes, is_probe)))
            self._under_way[start_task(work, f"webhook of {self._subscription.name}")] = None
        self._show()

    def _may_begin(self) -> bool:
        return (
            self._lanes.has_ready
            and not self._is_stopping
            and len(self._under_way) < self._window.size
            and self._room.has_request_for(len(self._under_way))
            and not self._room.loop_share.is_over
            and self._circuit.may_send(self._now_ms())
        )

    def _goes_alone(self, message: Delivery) -> bool:
        """What has failed before, and what has only this delivery: a batch is refused as a whole, and one message that
        its endpoint never takes would have the others given up with it."""
        has_one = self._subscription.max_deliveries == 1 and self._subscription.guarantee != AT_MOST_ONCE
        return message.deliveries > 1 or has_one

    async def _deliver(self, batch: _Sending) -> None:
        began = self._now_ms()
        answer: EndpointAnswer | None = None
        try:
            webhook = await self._webhook(batch.messages)
            answer = await self._client.send(webhook, self._broker.clock.now_ms())
        except Exception as error:
            # A mistake of ours: the message comes to its last delivery like any other, not round and round.
            log.error("push_failed", subscription=self._subscription.name, error=error)
            answer = EndpointAnswer(PushOutcome.FAILED, f"the broker's own mistake: {type(error).__name__}")
        finally:
            task = asyncio.current_task()
            assert task is not None
            under_way = len(self._under_way)
            del self._under_way[task]
            self._room.requests -= 1
            self._conclude(batch, answer, began, under_way)
            self._let_others_know()

    async def _webhook(self, messages: list[Delivery]) -> Webhook:
        """A single message is a single event, unless the endpoint is told to expect batches."""
        name = self._subscription.name

        def make() -> Webhook:
            return single_webhook(name, messages[0]) if is_single else batch_webhook(name, messages)

        is_single = self._endpoint.batch_max == 1
        if sum(map(_bytes_of, messages)) <= _INLINE_BYTES_MAX:
            return make()
        return await in_thread(make)

    def _conclude(self, batch: _Sending, answer: EndpointAnswer | None, began: int, under_way: int) -> None:
        """None: we were told to stop before there was an answer."""
        now = self._now_ms()
        if answer is None:
            self._circuit.on_abandoned(now, is_probe=batch.is_probe)
            self._give_back(batch, delay_ms=0, reason="")
            return
        self._health.durations.note((now - began) / 1000)
        if answer.outcome is PushOutcome.DELIVERED:
            self._on_delivered(batch, began, now, under_way)
        else:
            self._on_failure(batch, answer, began, now)

    def _on_delivered(self, batch: _Sending, began: int, now: int, under_way: int) -> None:
        if self._circuit.state is not CircuitState.CLOSED:
            self._window.restart()
            log.info("endpoint_is_back", subscription=self._subscription.name, url=self._shown_url)
        self._circuit.on_success()
        self._window.on_success(began, now, under_way)
        self._health.delivered_total += len(batch.messages)
        self._health.last_success_ms = self._broker.clock.now_ms()
        self._lanes.finish(batch.lanes)
        self._drop(batch.messages)
        if self._subscription.guarantee != AT_MOST_ONCE:
            self._settler.add([Settlement(one.receipt, "ack") for one in batch.messages])

    def _on_failure(self, batch: _Sending, answer: EndpointAnswer, began: int, now: int) -> None:
        was_open = self._circuit.state is not CircuitState.CLOSED
        self._circuit.on_failure(now, is_probe=batch.is_probe)
        self._window.on_failure(began, now)
        if answer.retry_after_ms:
            self._circuit.hold(now + answer.retry_after_ms)
        self._health.last_failure = answer.reason
        self._health.last_failure_ms = self._broker.clock.now_ms()
        if not was_open and self._circuit.state is CircuitState.OPEN:
            log.warning(
                "endpoint_fails",
                subscription=self._subscription.name,
                url=self._shown_url,
                reason=answer.reason,
                next_try_seconds=round((self._circuit.opens_in_ms(now) or 0) / 1000, 1),
            )
        if answer.outcome is PushOutcome.GONE:
            self._return_unsent(batch.messages + self._lanes.give_up(batch.lanes))
            self._end(answer.reason)
        else:
            self._give_back(batch, delay_ms=answer.retry_after_ms, reason=answer.reason)

    def _end(self, reason: str) -> None:
        """The endpoint is gone for good: nothing is sent until somebody changes or resumes the subscription."""
        if self._health.stopped:
            return
        self._health.stopped = f"the endpoint says that it is gone ({reason})"
        self._tasks[0].cancel()
        self._return_unsent(self._lanes.clear())
        log.warning("push_stopped", subscription=self._subscription.name, url=self._shown_url, reason=reason)
        self._tasks.append(start_task(self._pause(), f"pause of {self._subscription.name}"))

    async def _pause(self) -> None:
        try:
            await self._broker.subscriptions.update(self._subscription.name, {"paused": True}, PUSHER)
        except KafkaError as error:  # this broker has stopped all the same; another one will hear the same answer
            log.warning(
                "push_not_paused", subscription=self._subscription.name, reason=error.message or error.code.name
            )

    # Held messages

    def _hold(self, message: Delivery) -> None:
        self._held[message.receipt] = message
        size = _bytes_of(message)
        self._held_bytes += size
        self._room.held_bytes += size

    def _drop(self, messages: Sequence[Delivery]) -> None:
        for message in messages:
            if self._held.pop(message.receipt, None) is not None:
                size = _bytes_of(message)
                self._held_bytes -= size
                self._room.held_bytes -= size

    def _give_back(self, batch: _Sending, *, delay_ms: int, reason: str) -> None:
        """What failed, and all that waits behind it: in its own time each, for they have been delivered as often."""
        behind = self._lanes.give_up(batch.lanes)
        self._release(batch.messages, delay_ms=delay_ms, reason=reason)
        self._release(behind, delay_ms=delay_ms, reason=reason)

    def _return_unsent(self, messages: Sequence[Delivery]) -> None:
        """To the queue, and their deliveries do not count."""
        self._drop(messages)
        if self._subscription.guarantee == AT_MOST_ONCE:
            self._health.dropped_total += len(messages)
        else:
            self._broker.queues.give_back(self._subscription.name, messages)

    def _release(self, messages: Sequence[Delivery], *, delay_ms: int, reason: str) -> None:
        """Without a reason they were not sent, or nobody knows: they may come again at once."""
        self._drop(messages)
        if self._subscription.guarantee == AT_MOST_ONCE:
            self._health.dropped_total += len(messages)
            return
        if reason:
            self._health.failed_total += len(messages)
        self._settler.add([self._settlement(one, delay_ms, reason) for one in messages])

    def _settlement(self, message: Delivery, delay_ms: int, reason: str) -> Settlement:
        """After its last delivery it is rejected, so that its dead letter says why."""
        if not reason:
            return Settlement(message.receipt, "release", delay_ms=0)
        if message.deliveries >= self._subscription.max_deliveries:
            return Settlement(message.receipt, "reject", reason=reason)
        return Settlement(message.receipt, "release", delay_ms=max(delay_ms, self._retry_delay_ms(message)))

    def _retry_delay_ms(self, message: Delivery) -> int:
        draw = int.from_bytes(self._broker.randomness.bytes(4), "big") / 2**32
        subscription = self._subscription
        return retry_delay_ms(message.deliveries, subscription.backoff_min_ms, subscription.backoff_max_ms, draw)

    async def _keep_locks(self) -> None:
        """What is held for long stays this broker's: a slow endpoint, or one that is resting."""
        while True:
            await asyncio.sleep(self._subscription.ack_timeout_ms / 3000)
            if self._held and self._subscription.guarantee != AT_MOST_ONCE:
                extend_ms = self._subscription.ack_timeout_ms
                self._settler.add([Settlement(receipt, "extend", extend_ms=extend_ms) for receipt in self._held])

    # Telling

    async def _metered(self, work: Coroutine[Any, Any, None]) -> None:
        await Metered(work, self._room.loop_share)

    def _let_others_know(self) -> None:
        self._send()  # a lane that was busy may go on, also while a pull waits for messages
        self._news.set()
        self._room.free()

    def _show(self) -> None:
        self._health.circuit = self._circuit.state
        self._health.window = self._window.size
        self._health.under_way = len(self._under_way)

    @property
    def _shown_url(self) -> str:
        """Without its query, in which some have a password."""
        return self._endpoint.url.split("?", 1)[0]

    def _say(self, event: str, **fields: object) -> None:
        if self._repeats.allow(self._loop.time()):
            log.warning(event, subscription=self._subscription.name, **fields, **self._repeats.take_left_out())

    def _now_ms(self) -> int:
        return round(self._loop.time() * 1000)


def _bytes_of(message: Delivery) -> int:
    return len(message.key or b"") + len(message.value or b"") + _MESSAGE_BYTES
