"""Every API in every version, with bodies that are right, spoiled, or nothing but noise."""

from __future__ import annotations

import random
import time

import pytest

from clarion.wire.apis import APIS, Api
from clarion.wire.frames import parse_request_header
from tests.broker.largest import Largest, largest_requests, makers
from tests.fuzz.neighbour import Target
from tests.fuzz.requests import VICTIM, every_version, frame, spoiled, valid_body
from tests.raw_client import RawClient
from tests.traps import words

PATIENCE_S = 60.0
MAY_WAIT = {"Produce", "Fetch", "JoinGroup", "SyncGroup"}  # acks=0 has no answer; the others wait for news or members
WAIT_S = 0.05


@pytest.fixture(scope="module", autouse=True)
def victim(besieged: Target) -> None:
    with RawClient(besieged.bootstrap) as raw:
        words.create_topic(raw, VICTIM)


def test_spoiled_requests_of_every_api_end_in_an_answer_or_a_closed_connection(target: Target, chance: random.Random):
    for api, version in every_version():
        for _ in range(4):
            body = spoiled(valid_body(api, version, chance), chance)
            ask(target, api, version, frame(api, version, body))


def test_random_but_well_formed_requests_are_answered(target: Target, chance: random.Random):
    """Nothing but the values is senseless here, so there is an answer to every one."""
    for api, version in every_version():
        for _ in range(2):
            answered = ask(target, api, version, frame(api, version, valid_body(api, version, chance)))
            assert answered or api.name in MAY_WAIT, f"{api.name} v{version} closed the connection"


def test_apis_and_versions_that_do_not_exist_close_the_connection(target: Target, chance: random.Random):
    strange = [Api(key, "?", 0, 0, 0) for key in (-1, 4, 5, 6, 7, 17, 24, 27, 36, 71, 999, 32767)]
    for api in [*strange, *APIS.values()]:
        for version in (-1, -32768, 99, 32767, api.max_version + 1):
            if api.speaks(version) and api.name != "?":
                continue
            answered = ask(target, api, version, frame(api, version, chance.randbytes(30)))
            assert answered == (api.name == "ApiVersions"), f"{api} v{version}"


def test_the_largest_legal_requests_right_and_spoiled(target: Target, chance: random.Random):
    """A few of them, others every time; the campaign takes them all."""
    for make in chance.sample(makers(), 6):
        ask_largest(target, make(), chance)


@pytest.mark.campaign
@pytest.mark.timeout(1200)
def test_all_of_the_largest_legal_requests_right_and_spoiled(target: Target, chance: random.Random):
    for largest in largest_requests():
        for _ in range(4):
            ask_largest(target, largest, chance)


def ask_largest(target: Target, largest: Largest, chance: random.Random) -> None:
    api, version = largest.api, int.from_bytes(largest.frame[6:8], "big")
    ask(target, api, version, largest.frame)
    body_at = 4 + parse_request_header(largest.frame[4:]).body_at
    ask(target, api, version, frame(api, version, spoiled(largest.frame[body_at:], chance)))


@pytest.mark.campaign
@pytest.mark.timeout(1200)
def test_ten_minutes_of_spoiled_requests(target: Target, chance: random.Random):
    count, deadline = 0, time.monotonic() + 600
    while time.monotonic() < deadline:
        for api, version in every_version():
            ask(target, api, version, frame(api, version, spoiled(valid_body(api, version, chance), chance)))
            count += 1
    print(f"{count} requests")


def ask(target: Target, api: Api, version: int, request: bytes) -> bool:
    """Whether there was an answer; False: the connection was closed, or the request may wait for ever and does."""
    with RawClient(target.bootstrap, patience_s=WAIT_S if api.name in MAY_WAIT else PATIENCE_S) as raw:
        raw.socket.sendall(request)
        try:
            return bool(raw.receive_frame())
        except TimeoutError:
            assert api.name in MAY_WAIT, (
                f"{api.name} v{version}: no answer within {PATIENCE_S} s: {request[:999].hex()}"
            )
            return False
