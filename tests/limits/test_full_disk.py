"""A disk that is full: writes are refused with an error that says so, reads go on, and room lets it go on.

A small tmpfs is the disk, so these need root; without it they are skipped.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from clarion.model.errors import ErrorCode
from clarion.wire.records import decode_batch, encode_batch
from tests.raw_client import RawClient
from tests.servers import ClarionProcess
from tests.traps import words
from tests.waiting import wait_for

STORAGE_ERROR = ErrorCode.KAFKA_STORAGE_ERROR
BALLAST_BYTES = 1 << 20


@pytest.fixture
def small_disk(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A folder on a file system of 4 MB (or what the test says), 1 MB of which is taken by a file named `ballast`."""
    folder = tmp_path / "small"
    folder.mkdir()
    if os.geteuid() != 0:
        pytest.skip("only root may mount a small disk")
    size = getattr(request, "param", "4m")
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], capture_output=True)
    if done.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {done.stderr.decode().strip()}")
    (folder / "ballast").write_bytes(bytes(BALLAST_BYTES))
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.fixture
def server(small_disk: Path) -> Iterator[ClarionProcess]:
    env = {"CLARION_OFFSETS_PARTITIONS": "1", "CLARION_CHECKPOINT_SECONDS": "0.2"}
    with ClarionProcess(small_disk / "data", env=env) as server:
        yield server
        assert "Traceback" not in server.stderr, server.stderr[-4000:]


def put(raw: RawClient, topic: str, value: bytes, partition: int = 0, acks: int = -1) -> tuple[int, int]:
    """Error code and base offset."""
    batch = bytes(encode_batch([(b"k", value, (), int(time.time() * 1000))]))
    data = words.topic_data(topic, batch, partition)
    answer = raw.ask("produce", 8, transactional_id=None, acks=acks, timeout=5000, topic_data=data)
    result = answer.responses[0].partition_responses[0]
    return result.error_code, result.base_offset


def fill(raw: RawClient, topic: str, acked: dict[int, bytes], size: int) -> int:
    """Produce until it is refused; returns the error. `acked` gets what was taken, by offset."""
    for number in range(10_000):
        value = b"%06d" % number + os.urandom(size)
        code, offset = put(raw, topic, value)
        if code:
            return code
        assert acked.setdefault(offset, value) is value, f"offset {offset} was given twice"
    raise AssertionError("the disk has no end")


def read_all(raw: RawClient, topic: str) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    end = words.end_offset(raw, topic)
    at = 0
    while at < end:
        records = words.fetch(raw, 11, topic, at, partition_max_bytes=10_000_000).records
        while len(records) >= 12 and len(records) >= (size := 12 + int.from_bytes(records[8:12], "big")):
            for record in decode_batch(records[:size]):
                found[record.offset] = record.value
                at = record.offset + 1
            records = records[size:]
    return found


@pytest.mark.parametrize("size", [3_000, 40_000])
def test_a_full_disk_refuses_writes_serves_reads_and_recovers(server: ClarionProcess, small_disk: Path, size: int):
    acked: dict[int, bytes] = {}
    with RawClient(server.bootstrap) as raw:
        words.create_topic(raw, "t", segment_bytes="300000")
        assert fill(raw, "t", acked, size) == STORAGE_ERROR
        assert read_all(raw, "t") == acked, "what was acknowledged is there, and nothing else"
        (small_disk / "ballast").unlink()
        before = len(acked)
        wait_for(lambda: put_one(raw, "t", acked, 2 * size), what="the log to take messages again")
        assert fill(raw, "t", acked, size) == STORAGE_ERROR
        assert len(acked) > before + 1
        assert read_all(raw, "t") == acked
        server.kill9()
    _make_room(server)
    server.start()
    with RawClient(server.bootstrap) as raw:
        found = read_all(raw, "t")
        assert found.items() >= acked.items(), "an acknowledged message is gone"
        assert len(found) - len(acked) <= 1, "at most the one that was refused may be there too"


def put_one(raw: RawClient, topic: str, acked: dict[int, bytes], size: int) -> bool:
    """One that is too large for what was left before: so the broker has seen that there is room again."""
    value = os.urandom(size)
    code, offset = put(raw, topic, value)
    if not code:
        acked[offset] = value
    return not code


def _make_room(server: ClarionProcess) -> None:
    """A start writes down its epoch, so it needs a little."""
    subprocess.run(["mount", "-o", "remount,size=8m", str(server.data_dir.parent)], check=True)


def test_a_reserve_is_left_for_commits(server: ClarionProcess, small_disk: Path):
    with RawClient(server.bootstrap) as raw:
        words.create_topic(raw, "t")
        words.find_coordinator(raw, "g")
        assert fill(raw, "t", {}, 3_000) == STORAGE_ERROR
        assert shutil.disk_usage(small_disk).free > 50_000
        assert [commit(raw, number) for number in range(10)] == [0] * 10
        assert committed(raw) == 9


def test_a_topic_of_limited_size_makes_its_own_room(server: ClarionProcess, small_disk: Path):
    """However much is written, and though no segment of the default size would ever be full."""
    with RawClient(server.bootstrap) as raw:
        words.create_topic(raw, "t", retention_bytes="500000")
        for number in range(100):
            wait_for(lambda n=number: put(raw, "t", b"%d " % n + bytes(100_000))[0] == 0, what="room")
        assert words.end_offset(raw, "t") == 100


def test_other_partitions_and_clients_go_on_when_the_disk_is_full(server: ClarionProcess, small_disk: Path):
    with RawClient(server.bootstrap) as raw, RawClient(server.bootstrap) as other:
        words.create_topic(raw, "t", 2)
        words.create_topic(raw, "u")
        assert put(other, "u", b"early") == (0, 0)
        assert fill(raw, "t", {}, 100_000) == STORAGE_ERROR
        assert put(raw, "t", os.urandom(500_000), partition=1)[0] == STORAGE_ERROR
        assert read_all(other, "u") == {0: b"early"}
        assert other.ask("metadata", 8, topics=None).topics
        (small_disk / "ballast").unlink()
        for partition in range(2):
            wait_for(lambda p=partition: put(raw, "t", b"x", p)[0] == 0, what="room")
        assert put(other, "u", b"late") == (0, 1)


def test_a_topic_that_cannot_be_made_is_not_half_there(server: ClarionProcess, small_disk: Path):
    with RawClient(server.bootstrap) as raw:
        words.create_topic(raw, "t")
        assert fill(raw, "t", {}, 100_000) == STORAGE_ERROR
        filler = small_disk / "filler"
        _fill_to_the_brim(filler)
        wanted = {"name": "new", "num_partitions": 50, "replication_factor": 1, "assignments": [], "configs": []}
        (answer,) = raw.ask("create_topics", 4, topics=[wanted], timeout=5000, validate_only=False).topics
        assert answer.error_code != 0
        filler.unlink()
        (small_disk / "ballast").unlink()
        names = {topic.name for topic in raw.ask("metadata", 8, topics=None).topics}
        if "new" in names:
            assert put(raw, "new", b"x")[0] == 0, "it is listed and cannot be used"
        else:
            words.create_topic(raw, "new", 50)
        server.restart(kill=True)
    with RawClient(server.bootstrap) as raw:
        assert put(raw, "new", b"x", 49)[0] == 0


def test_commits_that_find_no_room_are_refused_and_recover(server: ClarionProcess, small_disk: Path):
    with RawClient(server.bootstrap) as raw:
        words.create_topic(raw, "t")
        words.find_coordinator(raw, "g")
        assert commit(raw, 1) == 0
        assert fill(raw, "t", {}, 100_000) == STORAGE_ERROR
        filler = small_disk / "filler"
        _fill_to_the_brim(filler)
        codes = [commit(raw, 2 + number) for number in range(100)]
        assert any(codes), "there was room after all"
        last = max((2 + number for number, code in enumerate(codes) if code == 0), default=1)
        assert committed(raw) == last, "what was refused must not be told"
        filler.unlink()  # which may be empty: the messages may have left no room at all
        (small_disk / "ballast").unlink()
        wait_for(lambda: commit(raw, 1000) == 0, what="room for a commit")
        server.restart(kill=True)
    with RawClient(server.bootstrap) as raw:
        words.find_coordinator(raw, "g")
        assert committed(raw) == 1000


@pytest.mark.parametrize("small_disk", ["16m"], indirect=True)  # of 4 MB the broker's ballast is hardly one note
def test_what_is_deleted_makes_room_on_a_disk_that_others_have_filled_to_the_last_byte(
    server: ClarionProcess, small_disk: Path
):
    with RawClient(server.bootstrap) as raw:
        for name in ("first", "second", "third"):
            words.create_topic(raw, name, segment_bytes="100000")
            for number in range(3):
                assert put(raw, name, bytes(60_000))[1] == number
        wait_for((server.data_dir / "ballast").exists, what="the broker's ballast")
        for number, name in enumerate(("first", "second")):
            _fill_to_the_brim(small_disk / f"filler{number}")
            assert os.statvfs(small_disk).f_bavail == 0
            (deleted,) = raw.ask("delete_topics", 3, topic_names=[name], timeout=5000).responses
            assert deleted.error_code == 0
            assert os.statvfs(small_disk).f_bavail > 0
            (small_disk / f"filler{number}").unlink()
            wait_for((server.data_dir / "ballast").exists, what="the ballast to be made again")
        _fill_to_the_brim(small_disk / "filler")
        asked = [{"name": "third", "partitions": [{"partition_index": 0, "offset": 2}]}]
        (answer,) = raw.ask("delete_records", 1, topics=asked, timeout=5000).topics
        assert (answer.partitions[0].error_code, answer.partitions[0].low_watermark) == (0, 2)
        server.restart(kill=True)
    with RawClient(server.bootstrap) as raw:
        names = {topic.name for topic in raw.ask("metadata", 8, topics=None).topics}
        assert names == {"third"}
        assert words.list_offsets(raw, 5, "third", -2).offset == 2


def commit(raw: RawClient, offset: int) -> int:
    place = {"partition_index": 0, "committed_offset": offset, "committed_metadata": "m" * 1000}
    answer = raw.ask("offset_commit", 2, group_id="g", generation_id_or_member_epoch=-1, member_id="",
                     retention_time=-1, topics=[{"name": "t", "partitions": [place]}])  # fmt: skip
    return answer.topics[0].partitions[0].error_code


def committed(raw: RawClient) -> int:
    answer = raw.ask("offset_fetch", 3, group_id="g", topics=[{"name": "t", "partition_indexes": [0]}])
    return answer.topics[0].partitions[0].committed_offset


def _fill_to_the_brim(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            try:
                while file.write(bytes(size)):
                    pass
            except OSError:
                continue
