"""A data directory of the version that kept its registry in a journal: everything is in it after the first start.

`older/stopped.tar.gz` was left by a clean stop of that version, `older/killed.tar.gz` by a `kill -9`: the topics
`orders` (3 partitions, two segments each, an idempotent producer) and `prices` (compacted), a topic that was deleted,
the offsets of a group, and one restart in between.
"""

import tarfile
from pathlib import Path

import pytest

from clarion.broker.broker import Broker
from clarion.log.data_directory import WrongFolderError
from clarion.testing import EmbeddedBroker, embedded
from clarion.world import RealDisk

OLDER = Path(__file__).parent / "older"
FOR_EVER = {"offsets_retention_minutes": 2**31 - 1}  # the offsets were committed when this was written


@pytest.fixture(params=["stopped", "killed"])
def data(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    with tarfile.open(OLDER / f"{request.param}.tar.gz") as packed:
        if hasattr(tarfile, "data_filter"):  # not in Debian 12's Python
            packed.extraction_filter = tarfile.data_filter
        packed.extractall(tmp_path)
    return tmp_path / "data"


def epochs(inside: Broker) -> set[int]:
    return {one.leader_epoch for one in inside.partitions}


def check(broker: EmbeddedBroker) -> None:
    assert broker.topics() == {"orders": 3, "prices": 1}
    found = [(one.partition, one.key, one.value) for one in broker.messages("orders")]
    written = [(number % 3, b"key %d" % (number % 7), b"value %d" % number) for number in range(60)]
    written += [(0, None, b"idempotent %d" % number) for number in range(5)] + [(2, None, b"after a restart")]
    assert found == sorted(written, key=lambda one: one[0])
    assert {one.value for one in broker.messages("prices")} == {b"price %d" % number for number in range(12)}
    assert broker.committed("readers") == {("orders", 0): 11, ("orders", 1): 7}


def test_everything_is_in_it_after_the_first_start_and_after_later_ones(data: Path):
    cluster_id = dict(line.split("=") for line in (data / "meta.properties").read_text().split())["cluster.id"]
    with embedded(data_dir=data, **FOR_EVER) as broker:
        for end in (broker.stop, broker.kill, broker.stop):
            check(broker)
            end()
            broker.start()
        assert broker._call(lambda inside: inside.image.cluster_id) == cluster_id
        assert broker._call(epochs) == {5}, "it had been started twice before"
        assert broker._run(lambda inside: inside.new_producer_id()) >= 1_000, "the first block was given out"
        assert dict(broker._call(lambda inside: inside.image.topics["orders"].overrides)) == {
            "retention.ms": "-1",
            "segment.bytes": "1100",
        }


def test_an_older_version_stops_at_what_has_the_journals_name(data: Path):
    """It opens `registry.journal` for reading and writing before it touches anything, and says why that fails."""
    journal = (data / "registry.journal").read_bytes()
    with embedded(data_dir=data, **FOR_EVER):
        pass
    with pytest.raises(IsADirectoryError, match="Is a directory"):
        RealDisk().open(str(data / "registry.journal"))
    assert (data / "registry.journal.imported").read_bytes() == journal


def test_a_folder_of_another_node_is_refused_before_anything_in_it_is_changed(data: Path):
    before = {path: path.read_bytes() for path in data.rglob("*") if path.is_file()}
    with pytest.raises(WrongFolderError, match=r"node\.id=1, this broker is node\.id=2"):
        embedded(data_dir=data, node_id=2).start()
    after = {path: path.read_bytes() for path in data.rglob("*") if path.is_file() and path.name != ".lock"}
    assert after == before


def test_a_folder_of_a_newer_version_is_refused_in_one_line_and_left_alone(data: Path):
    with embedded(data_dir=data, **FOR_EVER):
        pass
    meta = data / "meta.properties"
    assert "clarion.format=2" in meta.read_text().splitlines()
    meta.write_text(meta.read_text().replace("clarion.format=2", "clarion.format=3"))
    before = {path: path.read_bytes() for path in data.rglob("*") if path.is_file() and path.name != ".lock"}
    with pytest.raises(WrongFolderError, match=r"clarion\.format=3, this version of Clarion knows formats up to 2"):
        embedded(data_dir=data, **FOR_EVER).start()
    assert {path: path.read_bytes() for path in before} == before
