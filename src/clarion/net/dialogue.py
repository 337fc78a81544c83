"""What is said on a connection to another broker, without the connection: requests out, answers in, in order.

A broker answers in the order of the requests, so the oldest unanswered one is whose answer comes next: anything else
means that the other side is no broker, or that we have lost count, and the connection is of no use any more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from struct import Struct
from typing import Any, Final

from clarion import __version__
from clarion.model.errors import ErrorCode, MalformedError
from clarion.wire import bridge
from clarion.wire.apis import API_VERSIONS, APIS, Api
from clarion.wire.frames import LENGTH_BYTES, parse_response_header, request_frame
from clarion.world import Randomness

FRAME_BYTES_MAX: Final = 256 * 1024 * 1024  # more than any answer: what was asked for, and one batch beyond it
_SCRATCH_BYTES: Final = 64 * 1024  # more than nearly every answer
_SPARE_BYTES_MAX: Final = 2 * 1024 * 1024  # a follower's usual large piece; what stays in memory on each connection
_CORRELATION_MASK: Final = 0x7FFFFFFF
_LENGTH = Struct(">i")
_SOFTWARE: Final = "clarion"


class ChannelUnusableError(Exception):
    """The other side does not trust us, or speaks another protocol or other versions: trying again would not help."""


class Answer:
    __slots__ = ("api_key", "body", "correlation_id", "version")

    def __init__(self, correlation_id: int, api_key: int, version: int, body: memoryview) -> None:
        self.correlation_id = correlation_id
        self.api_key = api_key
        self.version = version
        self.body = body  # of the frame: records may be many megabytes


class Dialogue:
    def __init__(self, client_id: str, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self._client_id = client_id
        self._frame_bytes_max = frame_bytes_max
        self._last_id = 0
        self._unanswered: deque[tuple[int, int, int]] = deque()
        self._scratch = memoryview(bytearray(_SCRATCH_BYTES))  # frames that fit into it are copied from there
        self._large: memoryview | None = None  # a frame that does not, while it arrives
        self._spare: bytearray | None = None  # in which the last such frame came
        self._filled = 0  # of either

    @property
    def unanswered(self) -> int:
        return len(self._unanswered)

    def ask(self, api_key: int, version: int, body: bytes) -> tuple[int, bytes]:
        """The correlation id under which the answer will come, and what has to be sent."""
        self._last_id = self._last_id + 1 & _CORRELATION_MASK
        self._unanswered.append((self._last_id, api_key, version))
        return self._last_id, request_frame(api_key, version, self._last_id, self._client_id, body)

    def buffer(self) -> memoryview:
        """Where the next bytes are to be written."""
        return self._scratch[self._filled :] if self._large is None else self._large[self._filled :]

    def received(self, count: int) -> Iterator[Answer]:
        """The answers that are complete with so many bytes more. MalformedError ends the dialogue."""
        self._filled += count
        if self._large is not None:
            if self._filled == len(self._large):
                frame, self._large, self._filled = self._large[LENGTH_BYTES:], None, 0
                yield self._answer(frame)
            return
        at, end = 0, self._filled
        while end - at >= LENGTH_BYTES:
            whole = LENGTH_BYTES + self._frame_size(at)
            if at + whole > end:
                if whole > _SCRATCH_BYTES:
                    self._large = self._room_for(whole)
                break
            frame = memoryview(bytes(self._scratch[at + LENGTH_BYTES : at + whole]))
            at += whole
            yield self._answer(frame)
        rest = self._scratch if self._large is None else self._large
        rest[: end - at] = self._scratch[at:end]
        self._filled = end - at

    def _frame_size(self, at: int) -> int:
        (size,) = _LENGTH.unpack_from(self._scratch, at)
        if not LENGTH_BYTES <= size <= self._frame_bytes_max:
            raise MalformedError(f"a frame of {size} bytes: the other side does not speak Kafka's protocol")
        return int(size)

    def _room_for(self, size: int) -> memoryview:
        """Memory that was used before, where nobody looks at it any more: the first touch of fresh memory takes longer
        than all else that is done with a large answer."""
        spare = self._spare
        if spare is None or len(spare) < size or _is_looked_at(spare):
            spare = bytearray(size)
            self._spare = spare if size <= _SPARE_BYTES_MAX else None
        return memoryview(spare)[:size]

    def _answer(self, frame: memoryview) -> Answer:
        if not self._unanswered:
            raise MalformedError("an answer came that nobody asked for")
        expected, api_key, version = self._unanswered.popleft()
        correlation_id, body_at = parse_response_header(frame, api_key, version)
        if correlation_id != expected:
            raise MalformedError(f"request {correlation_id} was answered where {expected} was the oldest")
        return Answer(correlation_id, api_key, version, frame[body_at:])


def _is_looked_at(buffer: bytearray) -> bool:
    """Whether there are views of it: then its size cannot be changed."""
    try:
        buffer.append(buffer.pop())
    except BufferError:
        return True
    return False


class PeerVersions:
    """What the other side speaks, as its answer to ApiVersions says."""

    def __init__(self, ranges: dict[int, tuple[int, int]]) -> None:
        self._ranges = ranges

    def knows(self, api: Api) -> bool:
        return api.key in self._ranges

    def choose(self, api: Api, newest: int | None = None) -> int:
        """The newest version that both sides speak, and none above `newest`."""
        low, high = self._ranges.get(api.key, (0, -1))
        version = min(high, api.max_version if newest is None else newest)
        if version < max(low, api.min_version):
            spoken = f"{low}-{high}" if high >= 0 else "none"
            raise ChannelUnusableError(
                f"{api.name}: we speak versions {api.min_version}-{api.max_version}, the other side {spoken}"
            )
        return version


def greeting(version: int) -> bytes:
    """The body of the first request on a connection."""
    from clarion.wire.messages.metadata import ApiVersionsRequest  # at the first connection: a start is sooner done

    hello = ApiVersionsRequest(client_software_name=_SOFTWARE, client_software_version=__version__)
    return bridge.encode(hello, API_VERSIONS, version, "request")


def read_greeting(answer: Answer) -> PeerVersions | int:
    """What the other side speaks; or the version in which it wants to be asked again (KIP-511)."""
    from clarion.wire.messages.metadata import ApiVersionsResponse

    code = int.from_bytes(answer.body[:2], "big", signed=True)
    is_older = code == ErrorCode.UNSUPPORTED_VERSION
    reply = bridge.decode(ApiVersionsResponse, API_VERSIONS, 0 if is_older else answer.version, "response", answer.body)
    versions = PeerVersions({each.api_key: (each.min_version, each.max_version) for each in reply.api_keys})
    if is_older:
        return versions.choose(APIS[API_VERSIONS], answer.version - 1)
    if reply.error_code:
        raise ChannelUnusableError(f"ApiVersions was answered with error {reply.error_code}")
    return versions


def read_answer(answer: Answer) -> Any:
    return bridge.decode(APIS[answer.api_key].response, answer.api_key, answer.version, "response", answer.body)


class Backoff:
    """How long to wait before the next try to connect: twice as long each time, up to a limit, and not in step."""

    def __init__(self, first_seconds: float, seconds_max: float, randomness: Randomness) -> None:
        self._first_seconds = first_seconds
        self._seconds_max = seconds_max
        self._randomness = randomness
        self._failures = 0

    def succeeded(self) -> None:
        self._failures = 0

    def failed(self) -> float:
        """Seconds to wait, within a fifth of what they would be (Kafka's jitter)."""
        doublings = min(self._failures, 30)  # beyond any limit, and no overflow
        self._failures += 1
        share = int.from_bytes(self._randomness.bytes(2), "big") / 0xFFFF
        return min(self._first_seconds * 2.0**doublings, self._seconds_max) * (0.8 + 0.4 * share)
