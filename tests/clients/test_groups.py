"""Consumers that share the work: rebalancing under load, progress that survives, members that keep their place."""

import pytest

from tests.clients.adapters import Confluent
from tests.clients.adapters.model import PATIENCE_S, Client, Committed, Member, Outgoing
from tests.clients.workers import Pump, Worker, wait_until_shared
from tests.waiting import wait_for

PARTITIONS = 6


@pytest.mark.needs("groups")
def test_members_come_and_go_under_load_and_every_message_is_processed(
    client: Client, admin: Client, unique: str
) -> None:
    admin.create_topic(unique, PARTITIONS)
    everything = {(unique, partition) for partition in range(PARTITIONS)}

    def join() -> Member:
        return client.member(unique, [unique])

    pump = Pump(admin, unique, PARTITIONS)
    workers = [Worker(join)]
    wait_until_shared(workers, everything)
    workers += [Worker(join), Worker(join)]
    wait_until_shared(workers, everything)
    workers[0].leave()
    wait_until_shared(workers[1:], everything)
    first_after = len(pump.sent) + 50  # what is sent from now on falls into the last, stable assignment
    wait_for(lambda: len(pump.sent) > first_after + 100, what="load on the last assignment")
    sent = pump.stop()

    def seen() -> list[bytes]:
        return [message.value for worker in workers for message in worker.seen]

    def is_complete() -> bool:
        return len(set(sent).difference(seen())) <= client.lost_by_leaving

    wait_for(is_complete, seconds=PATIENCE_S, what="every message to be processed")
    late = [value for value in seen() if int(value) >= first_after]
    assert len(late) == len(set(late)), "a message of the stable time was processed twice: two owners"
    for worker in workers[1:]:
        worker.leave()


@pytest.mark.needs("groups")
def test_progress_survives_the_consumer_and_the_broker(client: Client, own_server, unique: str) -> None:
    admin = Confluent(own_server.bootstrap)
    client = type(client)(own_server.bootstrap)
    admin.create_topic(unique)
    admin.produce(unique, [Outgoing(b"%d" % n) for n in range(10)])
    assert _drain(client, unique, 10) == [b"%d" % n for n in range(10)]
    admin.produce(unique, [Outgoing(b"after the consumer")])
    assert _drain(client, unique, 1) == [b"after the consumer"]
    assert admin.group_offsets(unique)[unique, 0].offset == 11
    own_server.restart(kill=True)
    admin = Confluent(own_server.bootstrap)
    client = type(client)(own_server.bootstrap)
    admin.produce(unique, [Outgoing(b"after the broker")])
    assert _drain(client, unique, 1) == [b"after the broker"]


def _drain(client: Client, name: str, count: int) -> list[bytes | None]:
    worker = Worker(lambda: client.member(name, [name]))
    wait_for(lambda: len(worker.seen) >= count or worker.problem, seconds=PATIENCE_S, what=f"{count} messages")
    worker.leave()
    return [message.value for message in worker.seen]


@pytest.mark.needs("members")  # kcat ends when its broker is away
@pytest.mark.parametrize("kill", [True, False], ids=["killed", "stopped"])
def test_a_live_consumer_goes_on_where_it_was_when_the_broker_is_back(
    client: Client, own_server, unique: str, kill: bool
) -> None:
    """It neither starts again at the beginning nor skips: its position outlives the broker."""
    admin = Confluent(own_server.bootstrap)
    client = type(client)(own_server.bootstrap)
    admin.create_topic(unique)
    admin.produce(unique, [Outgoing(b"%d" % n) for n in range(10)])
    worker = Worker(lambda: client.member(unique, [unique]))
    wait_for(lambda: len(worker.seen) == 10 or worker.problem, seconds=PATIENCE_S, what="the first ten")
    wait_for(lambda: _is_committed(admin, unique, 10), what="the commit")
    own_server.restart(kill=kill)
    Confluent(own_server.bootstrap).produce(unique, [Outgoing(b"%d" % n) for n in range(10, 20)])
    wait_for(lambda: len({m.offset for m in worker.seen}) == 20 or worker.problem, seconds=PATIENCE_S, what="the rest")
    worker.leave()
    values = [m.value for m in worker.seen]
    assert values[:10] == [b"%d" % n for n in range(10)]
    # What it had not committed when the group came together again may come twice; what it had may not.
    assert list(dict.fromkeys(values[10:])) == [b"%d" % n for n in range(10, 20)]


def _is_committed(admin: Client, name: str, offset: int) -> bool:
    committed = admin.group_offsets(name).get((name, 0))
    return committed is not None and committed.offset == offset


def test_members_of_different_libraries_share_one_group(every_reader: list[Client], admin: Client, unique: str) -> None:
    """They settle on the assignor they all know, and each understands the leader's assignment."""
    admin.create_topic(unique, 8)
    pump = Pump(admin, unique, 8)
    workers = [Worker(lambda c=c: c.member(unique, [unique])) for c in every_reader]
    wait_until_shared(workers, {(unique, partition) for partition in range(8)})
    sent = pump.stop()
    wait_for(
        lambda: {m.value for worker in workers for m in worker.seen} == set(sent),
        seconds=PATIENCE_S,
        what="every message to be processed",
    )
    for worker in workers:
        worker.leave()


@pytest.mark.needs("commit-metadata")
def test_a_committed_offset_comes_back_with_its_metadata(client: Client, topic: str, admin: Client) -> None:
    admin.produce(topic, [Outgoing(b"%d" % n) for n in range(5)])
    member = client.member(topic, [topic])
    wait_for(lambda: member.poll(0.5), what="the first message")
    member.commit_with_metadata(topic, 0, 3, "half way, zürich")
    assert client.group_offsets(topic) == {(topic, 0): Committed(3, "half way, zürich")}
    member.close()


@pytest.mark.needs("static", "admin")
def test_a_static_member_restarts_without_a_rebalance(client: Client, unique: str, admin: Client) -> None:
    """Its place is kept while it is away for less than the session timeout, and the others do not notice."""
    admin.create_topic(unique, 4)
    everything = {(unique, partition) for partition in range(4)}
    workers = [Worker(lambda i=i: client.member(unique, [unique], instance=f"instance-{i}")) for i in "ab"]
    wait_until_shared(workers, everything)
    kept, back = (set(worker.owned) for worker in workers)
    workers[1].leave()
    assert admin.describe_group(unique).members == 2, "a static member that went away still has its place"
    again = Worker(lambda: client.member(unique, [unique], instance="instance-b"))
    wait_for(lambda: again.owned or again.problem, seconds=PATIENCE_S, what="the member to be back")
    assert (workers[0].owned, again.owned) == (kept, back)
    again.leave()
    workers[0].leave()


@pytest.mark.needs("groups")
def test_one_consumer_reads_two_hundred_partitions(client: Client, admin: Client, unique: str) -> None:
    admin.create_topic(unique, 200)
    sent = [Outgoing(b"%d" % n, partition=n % 200) for n in range(400)]
    admin.produce(unique, sent)
    worker = Worker(lambda: client.member(unique, [unique]))
    wait_for(lambda: len(worker.seen) >= 400 or worker.problem, seconds=PATIENCE_S, what="400 messages")
    worker.leave()
    assert sorted(m.value for m in worker.seen) == sorted(r.value for r in sent)
    assert {m.partition for m in worker.seen} == set(range(200))


@pytest.mark.needs("cooperative")
def test_cooperative_members_keep_what_they_need_not_give_away(client: Confluent, admin: Client, unique: str) -> None:
    admin.create_topic(unique, PARTITIONS)
    everything = {(unique, partition) for partition in range(PARTITIONS)}
    members = []

    def join() -> Member:
        members.append(client.member(unique, [unique], **{"partition.assignment.strategy": "cooperative-sticky"}))
        return members[-1]

    first = Worker(join)
    wait_until_shared([first], everything)
    second = Worker(join)
    wait_until_shared([first, second], everything)
    moves = [event for event in members[0].events if event[1]]
    assert moves == [("assigned", PARTITIONS), ("revoked", PARTITIONS // 2)], "the first one keeps half without a break"
    second.leave()
    wait_until_shared([first], everything)
    first.leave()


@pytest.mark.needs("kip848")
def test_the_new_group_protocol_shares_and_moves_partitions_under_load(
    client: Confluent, admin: Client, unique: str
) -> None:
    admin.create_topic(unique, PARTITIONS)
    everything = {(unique, partition) for partition in range(PARTITIONS)}
    pump = Pump(admin, unique, PARTITIONS)
    workers = [Worker(lambda: client.member(unique, [unique], **{"group.protocol": "consumer"})) for _ in range(2)]
    wait_until_shared(workers, everything)
    assert admin.describe_group(unique).members == 2
    workers[0].leave()
    wait_until_shared(workers[1:], everything)
    sent = pump.stop()
    wait_for(
        lambda: {m.value for worker in workers for m in worker.seen} == set(sent),
        seconds=PATIENCE_S,
        what="every message to be processed",
    )
    workers[1].leave()


@pytest.mark.needs("kip848")
@pytest.mark.parametrize("assignor", ["range", "uniform"])
def test_the_new_group_protocol_lets_the_member_choose_an_assignor(
    client: Confluent, admin: Client, unique: str, assignor: str
) -> None:
    admin.create_topic(unique, 4)
    chosen = {"group.protocol": "consumer", "group.remote.assignor": assignor}
    workers = [Worker(lambda: client.member(unique, [unique], **chosen)) for _ in range(2)]
    wait_until_shared(workers, {(unique, partition) for partition in range(4)})
    assert sorted(len(worker.owned) for worker in workers) == [2, 2]
    for worker in workers:
        worker.leave()


@pytest.mark.needs("kip848")
def test_the_new_group_protocol_follows_a_regular_expression(client: Confluent, admin: Client, unique: str) -> None:
    admin.create_topic(f"{unique}-one")
    admin.create_topic(f"other-{unique}")
    worker = Worker(lambda: client.member(unique, [f"^{unique}-.*"], **{"group.protocol": "consumer"}))
    wait_for(
        lambda: worker.owned == {(f"{unique}-one", 0)} or worker.problem, seconds=PATIENCE_S, what="the first topic"
    )
    worker.leave()
