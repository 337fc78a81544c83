"""Epochs and producer ids are used once, also when the registry is an older copy of itself."""

import shutil
from pathlib import Path

import pytest
from confluent_kafka import Producer

from clarion.testing import embedded


def epoch_of(broker) -> int:
    return broker._call(lambda inside: inside.resolver.partition(inside.image.topics["t"], 0).leader_epoch)


@pytest.mark.parametrize("end", ["stop", "kill", "older version"])
def test_with_an_older_registry_the_next_term_is_still_a_new_one(tmp_path: Path, end: str):
    """After a clean stop its mark says which was the last; after a crash, and where it does not say it, the logs do."""
    data = tmp_path / "data"
    with embedded(data_dir=data, topics=["t"], durability="fsync") as broker:
        broker.produce("t", "first")
        broker.stop()
        shutil.copy(data / "registry.db", tmp_path / "older")
        for number in range(3):
            broker.start()
            broker.produce("t", f"later {number}")
            broker.kill() if end == "kill" else broker.stop()
        if end == "older version":
            (data / ".kafka_cleanshutdown").write_bytes(b'{"version":0,"brokerEpoch":-1}')
        for leftover in data.glob("registry.db*"):
            leftover.unlink()
        shutil.copy(tmp_path / "older", data / "registry.db")
        broker.start()
        assert epoch_of(broker) == 4
        for number in range(500):
            broker.produce("t", str(number))
        for _ in range(2):
            broker.kill()
            broker.start()
            assert len(broker.messages("t")) == 504, "nothing that was acknowledged looks like damage"
        assert epoch_of(broker) == 6


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_with_an_older_registry_no_producer_gets_the_id_of_another(tmp_path: Path, end: str):
    """Its first messages would be taken for the other one's, sent again: acknowledged, and never written."""
    data = tmp_path / "data"
    with embedded(data_dir=data, topics=["t"], durability="fsync") as broker:
        broker.stop()
        shutil.copy(data / "registry.db", tmp_path / "older")
        broker.start()
        send(broker.bootstrap, "first")
        broker.kill() if end == "kill" else broker.stop()
        for leftover in data.glob("registry.db*"):
            leftover.unlink()
        shutil.copy(tmp_path / "older", data / "registry.db")
        broker.start()
        send(broker.bootstrap, "second")
        assert [one.value for one in broker.messages("t")] == [b"first", b"second"]


def send(bootstrap: str, value: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    producer.produce("t", value)
    assert producer.flush(20) == 0
