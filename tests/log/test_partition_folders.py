"""The folders of partitions that go: found by their names, and told from others' by the topic's id in them."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from uuid import UUID

import pytest

from clarion.log.folder import METADATA, format_metadata
from clarion.log.partition_folders import remove_folders
from clarion.model.ids import TopicPartition
from clarion.world import RealDisk

GONE, PRESENT = UUID(int=1), UUID(int=2)
TP = TopicPartition("orders", 0)


def make(folder: Path, topic_id: UUID) -> Path:
    folder.mkdir()
    (folder / METADATA).write_bytes(format_metadata(topic_id))
    (folder / "00000000000000000000.log").write_bytes(b"messages")
    return folder


def test_what_another_topic_of_that_name_has_there_stays(tmp_path: Path) -> None:
    mine = make(tmp_path / str(TP), PRESENT)
    remove_folders(RealDisk(), str(tmp_path), [(TP, GONE)])
    assert (mine / "00000000000000000000.log").read_bytes() == b"messages"
    remove_folders(RealDisk(), str(tmp_path), [(TP, PRESENT)])
    assert os.listdir(tmp_path) == []


class FailingDisk(RealDisk):
    """Removes no folder the first time."""

    has_failed = False

    def remove_folder(self, path: str) -> None:
        if not self.has_failed:
            self.has_failed = True
            raise OSError(errno.EIO, "not now")
        super().remove_folder(path)


def test_a_removal_that_failed_half_way_is_finished_when_it_is_asked_for_again(tmp_path: Path) -> None:
    make(tmp_path / str(TP), GONE)
    disk = FailingDisk()
    with pytest.raises(OSError, match="not now"):
        remove_folders(disk, str(tmp_path), [(TP, GONE)])
    other = make(tmp_path / str(TP), PRESENT)
    remove_folders(disk, str(tmp_path), [(TP, GONE)])
    assert [one.name for one in tmp_path.iterdir()] == [other.name]
