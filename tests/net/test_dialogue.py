"""What is said to another broker: in order, in any pieces, and what is not an answer ends it."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clarion.model.errors import ErrorCode, MalformedError
from clarion.net.dialogue import (
    Answer,
    Backoff,
    ChannelUnusableError,
    Dialogue,
    PeerVersions,
    greeting,
    read_greeting,
)
from clarion.wire import api_versions
from clarion.wire.apis import API_VERSIONS, APIS, HEARTBEAT, METADATA
from clarion.wire.frames import parse_request_header, reply_head
from clarion.wire.messages.metadata import ApiVersion, ApiVersionsResponse


def reply(api_key: int, version: int, correlation_id: int, body: bytes) -> bytes:
    return reply_head(api_key, version, correlation_id, len(body)) + body


def receive(dialogue: Dialogue, data: bytes) -> list[Answer]:
    """As a socket would have it: no more at once than there is room for."""
    found: list[Answer] = []
    while data:
        room = dialogue.buffer()
        count = min(len(room), len(data))
        room[:count] = data[:count]
        found += dialogue.received(count)
        data = data[count:]
    return found


def test_a_request_carries_the_id_under_which_its_answer_comes():
    dialogue = Dialogue("us")
    number, frame = dialogue.ask(HEARTBEAT, 4, b"body")
    header = parse_request_header(frame[4:])
    assert (header.api_key, header.api_version, header.correlation_id, header.client_id) == (12, 4, number, "us")
    assert frame[4 + header.body_at :] == b"body"


@given(st.lists(st.binary(max_size=40), max_size=6), st.lists(st.integers(0, 300), max_size=8))
def test_answers_come_whole_and_in_order_whatever_the_pieces(bodies, cuts):
    dialogue = Dialogue("us")
    numbers = [dialogue.ask(HEARTBEAT, 4, b"")[0] for _ in bodies]
    stream = b"".join(reply(HEARTBEAT, 4, number, body) for number, body in zip(numbers, bodies, strict=True))
    places = sorted({0, len(stream), *(min(cut, len(stream)) for cut in cuts)})
    found = [answer for a, b in pairwise(places) for answer in receive(dialogue, stream[a:b])]
    assert [(answer.correlation_id, answer.body) for answer in found] == [*zip(numbers, bodies, strict=True)]
    assert dialogue.unanswered == 0


@given(
    st.lists(st.sampled_from([0, 1, 70, 65_000, 65_530, 65_536, 70_000, 300_000]), max_size=6), st.integers(1, 90_000)
)
def test_large_answers_come_whole_between_small_ones(sizes, piece):
    dialogue = Dialogue("us")
    numbers = [dialogue.ask(HEARTBEAT, 4, b"")[0] for _ in sizes]
    bodies = [bytes([number]) * size for number, size in zip(numbers, sizes, strict=True)]
    stream = b"".join(reply(HEARTBEAT, 4, number, body) for number, body in zip(numbers, bodies, strict=True))
    found = [answer for at in range(0, len(stream), piece) for answer in receive(dialogue, stream[at : at + piece])]
    assert [(answer.correlation_id, answer.body) for answer in found] == [*zip(numbers, bodies, strict=True)]


def test_memory_of_a_large_answer_is_used_again_when_nobody_looks_at_it():
    dialogue = Dialogue("us")

    def answered(content: bytes) -> memoryview:
        number, _ = dialogue.ask(HEARTBEAT, 4, b"")
        (answer,) = receive(dialogue, reply(HEARTBEAT, 4, number, content * 1_000_000))
        return answer.body

    kept = answered(b"1")
    other = answered(b"2")
    assert kept.obj is not other.obj
    assert (bytes(kept[:1]), bytes(other[-1:])) == (b"1", b"2")
    memory = other.obj
    other.release()
    del other
    assert answered(b"3").obj is memory
    assert bytes(kept[-1:]) == b"1"


@pytest.mark.parametrize(
    ("stream", "reason"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n", "does not speak Kafka's protocol"),
        (b"\xff\xff\xff\xff", "does not speak"),
        (b"\0\0\0\x03abc", "does not speak"),
        (reply(HEARTBEAT, 4, 2, b""), "request 2 was answered where 1 was the oldest"),
        (reply(HEARTBEAT, 4, 1, b"") + reply(HEARTBEAT, 4, 2, b""), "nobody asked for"),
    ],
)
def test_what_is_no_answer_ends_the_dialogue(stream, reason):
    dialogue = Dialogue("us")
    dialogue.ask(HEARTBEAT, 4, b"")
    with pytest.raises(MalformedError, match=reason):
        receive(dialogue, stream)


def test_a_frame_that_is_too_large_is_refused_by_its_length_alone():
    dialogue = Dialogue("us", frame_bytes_max=1000)
    dialogue.ask(HEARTBEAT, 4, b"")
    with pytest.raises(MalformedError, match="1001 bytes"):
        receive(dialogue, (1001).to_bytes(4, "big"))


def test_both_sides_speak_the_newest_version_that_both_know():
    metadata = APIS[METADATA]
    assert PeerVersions({METADATA: (0, 99)}).choose(metadata) == metadata.max_version
    assert PeerVersions({METADATA: (0, 5)}).choose(metadata) == 5
    assert PeerVersions({METADATA: (0, 99)}).choose(metadata, 7) == 7
    for theirs in ({}, {METADATA: (98, 99)}):
        with pytest.raises(ChannelUnusableError, match="Metadata: we speak"):
            PeerVersions(theirs).choose(metadata)


def test_an_older_broker_says_how_it_wants_to_be_asked_again():
    from clarion.wire import bridge

    only = ApiVersionsResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION,
        api_keys=(ApiVersion(api_key=API_VERSIONS, min_version=0, max_version=2),),
    )
    refusal = bridge.encode(only, API_VERSIONS, 0, "response")
    assert read_greeting(Answer(1, API_VERSIONS, 4, refusal)) == 2
    welcome = read_greeting(Answer(2, API_VERSIONS, 2, api_versions.encode_reply(2)))
    assert welcome.choose(APIS[METADATA]) == APIS[METADATA].max_version
    assert all(greeting(version) is not None for version in range(APIS[API_VERSIONS].max_version + 1))


def test_a_greeting_that_is_refused_for_another_reason_is_no_welcome():
    refused = api_versions.encode_refusal(3, ErrorCode.INVALID_REQUEST)
    with pytest.raises(ChannelUnusableError, match="error 42"):
        read_greeting(Answer(1, API_VERSIONS, 3, refused))


class Fixed:
    def __init__(self, content: bytes) -> None:
        self._content = content

    def bytes(self, count: int) -> bytes:
        return self._content[:count]


def test_pauses_double_up_to_a_limit_and_begin_again_after_success():
    middle = Backoff(0.05, 1.0, Fixed(b"\x7f\xff"))
    assert [round(middle.failed(), 2) for _ in range(7)] == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    middle.succeeded()
    assert round(middle.failed(), 2) == 0.05
    assert Backoff(1.0, 9.0, Fixed(b"\0\0")).failed() == pytest.approx(0.8)
    assert Backoff(1.0, 9.0, Fixed(b"\xff\xff")).failed() == pytest.approx(1.2)
    endless = Backoff(0.05, 1.0, Fixed(b"\xff\xff"))
    assert max(endless.failed() for _ in range(2000)) == pytest.approx(1.2)
