"""Groups of classic and KIP-848 members at work together."""

from __future__ import annotations

from collections.abc import Sequence

from clarion.model.errors import ErrorCode
from clarion.wire.messages.groups import (
    ConsumerGroupDescribeRequest,
    DescribeGroupsRequest,
)
from tests.groups.driver import ConsumerClient, Driver
from tests.groups.rolling import RollingClassic

EVERYTHING = [("t", number) for number in range(6)]


def classic_pair(driver: Driver, *, cooperative: bool = False, **wishes) -> list[RollingClassic]:
    clients = [RollingClassic(driver, "t", cooperative=cooperative, **wishes) for _ in range(2)]
    take_turns(clients)
    assert shares_of(clients) == [3, 3]
    return clients


def take_turns(clients: Sequence[RollingClassic | ConsumerClient], times: int = 12) -> None:
    """Everybody takes a few turns, and time passes as between heartbeats."""
    for _ in range(times):
        for client in clients:
            if isinstance(client, RollingClassic):
                client.step()
            else:
                assert client.beat().error_code == ErrorCode.NONE
        driver = clients[0].driver
        driver.advance(100)
        owned = owned_by(clients)
        assert len(owned) == len(set(owned)), "a partition has two owners"


def owned_by(clients) -> list[tuple[str, int]]:
    owned = []
    for client in clients:
        if isinstance(client, RollingClassic):
            owned += client.owned
        else:
            owned += [("t", number) for number in client.numbers("t")]
    return sorted(owned)


def shares_of(clients) -> list[int]:
    return [len(client.owned) for client in clients]


def describe(driver: Driver):
    return driver.tell("consumer_group_describe", ConsumerGroupDescribeRequest(group_ids=("g",)), version=1).groups[0]


def describe_classic(driver: Driver):
    return driver.tell("describe_groups", DescribeGroupsRequest(groups=("g",)), version=6).groups[0]


# Classic members in the new group


def mixed_pair(driver: Driver, **wishes) -> tuple[RollingClassic, ConsumerClient]:
    modern, classic = ConsumerClient(driver, "m", "t"), RollingClassic(driver, "t", **wishes)
    modern.join()
    take_turns([modern, classic])
    assert shares_of([classic, modern]) == [3, 3]
    return classic, modern
