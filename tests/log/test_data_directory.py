"""Whose a data directory is: what is written into it on the first start, and who is refused after that."""

import pytest

from clarion.log.data_directory import REGISTRY_FILE, STORE_FOLDER, WrongFolderError, claim_folder, holds_single_broker
from clarion.world import RealDisk
from clarion.world.lock import FolderTakenError

CLUSTER = "6f1c8a2e3b7d4f579d0a01"


@pytest.fixture
def claim(tmp_path):
    claim = claim_folder(RealDisk(), str(tmp_path))
    yield claim
    claim.release()


def test_a_new_folder_is_anybodys(claim):
    claim.check_node(7)
    claim.check_alone()
    claim.check_member()
    claim.check_registry(is_new=True)


def test_a_folder_is_taken_once_and_free_after_that(claim, tmp_path):
    with pytest.raises(FolderTakenError):
        claim_folder(RealDisk(), str(tmp_path))
    claim.release()
    claim_folder(RealDisk(), str(tmp_path)).release()


def test_a_folder_stays_with_its_node_and_its_cluster(claim, tmp_path):
    claim.settle(CLUSTER, 1)
    assert holds_single_broker(RealDisk(), str(tmp_path))
    claim.check_node(1)
    claim.settle(CLUSTER, 1)
    with pytest.raises(WrongFolderError, match=r"node\.id=1, this broker is node\.id=2"):
        claim.check_node(2)
    with pytest.raises(WrongFolderError, match=r"cluster\.id"):
        claim.settle("another", 1)


def test_a_folder_of_a_cluster_is_not_served_with_a_new_registry(claim):
    claim.settle(CLUSTER, 1)
    claim.check_registry(is_new=False)
    with pytest.raises(WrongFolderError, match="the registry is new"):
        claim.check_registry(is_new=True)


def test_a_broker_of_a_cluster_does_not_go_on_alone_and_a_single_one_does_not_join(claim, tmp_path):
    claim.settle(CLUSTER, 1)
    claim.check_alone()
    (tmp_path / REGISTRY_FILE).touch()
    with pytest.raises(WrongFolderError, match="clarion cluster adopt"):
        claim.check_member()
    claim.settle(CLUSTER, 1, "directory")
    with pytest.raises(WrongFolderError, match="belongs to a broker of a cluster"):
        claim.check_alone()


def test_the_folder_above_the_brokers_of_a_cluster_is_not_that_of_one(claim, tmp_path):
    (tmp_path / STORE_FOLDER).mkdir()
    (tmp_path / STORE_FOLDER / REGISTRY_FILE).touch()
    with pytest.raises(WrongFolderError, match="--brokers"):
        claim.check_alone()


def test_a_directory_keeps_its_id(claim):
    assert claim.directory_id(lambda: "new") == "new"
    claim.settle(CLUSTER, 1, "first")
    assert claim.directory_id(lambda: "new") == "first"


def test_what_others_have_written_beside_it_stays(claim, tmp_path):
    (tmp_path / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=x\nof.somebody=else\n")
    claim.settle("x", 1)
    assert "of.somebody=else\n" in (tmp_path / "meta.properties").read_text()
    assert "clarion.format=2\n" in (tmp_path / "meta.properties").read_text()


@pytest.mark.parametrize("written", ["3", "99", "two", "²"])
def test_a_format_that_is_newer_or_no_number_is_refused_and_the_lock_given_back(tmp_path, written):
    (tmp_path / "meta.properties").write_text(f"clarion.format={written}\n")
    for _ in range(2):
        with pytest.raises(WrongFolderError, match="knows formats up to 2"):
            claim_folder(RealDisk(), str(tmp_path))
