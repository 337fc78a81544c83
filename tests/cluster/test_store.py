"""The registry's journal: what was put is there after any crash, and damage is never guessed away."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID, uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clarion.cluster import EmbeddedStore, TopicRegistry
from clarion.cluster import store as store_module
from clarion.cluster.store import StoreDamagedError
from clarion.model.errors import ErrorCode, KafkaError
from clarion.world import RealDisk


def open_store(folder: Path) -> EmbeddedStore:
    return EmbeddedStore(RealDisk(), str(folder / "journal"))


CHANGES = st.lists(st.tuples(st.sampled_from("abc"), st.one_of(st.none(), st.integers())), max_size=30)


@given(changes=CHANGES)
@settings(max_examples=40, deadline=None)
def test_a_reopened_store_knows_what_was_put(tmp_path_factory: pytest.TempPathFactory, changes: list) -> None:
    folder = tmp_path_factory.mktemp("store")
    store, model = open_store(folder), {}
    for key, value in changes:
        if value is None:
            store.delete(key)
            model.pop(key, None)
        else:
            store.put(key, value)
            model[key] = value
    store.close()
    assert dict(open_store(folder).items("")) == model


def test_a_journal_that_is_mostly_history_is_written_anew(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    for number in range(2_500):
        store.put("counter", number)
    store.close()
    assert (tmp_path / "journal").stat().st_size < 60_000
    assert open_store(tmp_path).get("counter") == 2_499


def test_no_change_is_lost_when_it_has_the_journal_written_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many names that come, change and go: whichever of them triggers the rewriting is in what was rewritten."""
    monkeypatch.setattr(store_module, "_HISTORY_LINES_MIN", 7)
    store, model = open_store(tmp_path), {}
    for number in range(300):
        name = f"topics/{number * 7 % 40}"
        if number % 3 == 2:
            store.delete(name)
            model.pop(name, None)
        else:
            store.put(name, number)
            model[name] = number
        reopened = open_store(tmp_path)
        assert dict(reopened.items("")) == model, f"after change {number}"
        reopened.close()
    store.close()


def test_a_torn_last_line_is_cut_and_everything_before_it_kept(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.put("a", 1)
    whole = (tmp_path / "journal").read_bytes()
    store.put("b", 2)
    store.close()
    content = (tmp_path / "journal").read_bytes()
    for length in range(len(whole), len(content)):
        (tmp_path / "journal").write_bytes(content[:length])
        reopened = open_store(tmp_path)
        assert dict(reopened.items("")) == {"a": 1}
        reopened.put("c", 3)
        reopened.close()
        assert dict(open_store(tmp_path).items("")) == {"a": 1, "c": 3}


def test_a_last_line_that_lost_its_middle_in_a_power_loss_is_cut_too(tmp_path: Path) -> None:
    """Sectors reach the disk in any order: the newline may be there and what stood before it not."""
    store = open_store(tmp_path)
    store.put("a", 1)
    good = (tmp_path / "journal").stat().st_size
    store.put("b", "x" * 2000)
    store.close()
    content = bytearray((tmp_path / "journal").read_bytes())
    content[good + 512 : good + 1024] = bytes(512)
    for end in (b"", b'"}\n'):  # the second: what an older line that was longer has left behind
        (tmp_path / "journal").write_bytes(content + end)
        reopened = open_store(tmp_path)
        assert dict(reopened.items("")) == {"a": 1}
        reopened.close()
        assert (tmp_path / "journal").stat().st_size == good


def test_a_damaged_line_in_the_middle_stops_the_start_and_says_where(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.put("a", 1)
    store.put("b", 2)
    store.close()
    content = bytearray((tmp_path / "journal").read_bytes())
    content[12] ^= 1
    (tmp_path / "journal").write_bytes(content)
    with pytest.raises(StoreDamagedError, match="line 1"):
        open_store(tmp_path)


class NoReplacing(RealDisk):
    """A disk without room for a second journal beside the first."""

    def rename(self, old: str, new: str) -> None:
        raise OSError(28, "No space left on device")


def test_a_change_counts_though_the_journal_cannot_be_shortened_just_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "_HISTORY_LINES_MIN", 5)
    first = open_store(tmp_path)
    first.put("a", -1)
    first.close()
    store = EmbeddedStore(NoReplacing(), str(tmp_path / "journal"))
    for number in range(20):
        store.put("a", number)
    assert store.get("a") == 19
    store.close()
    assert open_store(tmp_path).get("a") == 19


def open_registry(folder: Path, partitions_max: int = 100) -> TopicRegistry:
    return TopicRegistry(open_store(folder), uuid4, partitions_max=partitions_max)


def test_topics_survive_a_restart_with_their_ids_and_settings(tmp_path: Path) -> None:
    registry = open_registry(tmp_path)
    orders = registry.create("orders", 3, {"retention.ms": "1000"})
    registry.create("gone", 1, {})
    registry.delete("gone")
    registry.grow("orders", 5)
    again = open_registry(tmp_path)
    assert [topic.name for topic in again] == ["orders"]
    found = again.find_by_id(orders.id)
    assert found is not None
    assert (found.partition_count, dict(found.overrides)) == (5, {"retention.ms": "1000"})
    assert again.cluster_id == registry.cluster_id
    assert again.partition_total == 5


def test_a_topic_made_again_under_its_old_name_has_a_new_id(tmp_path: Path) -> None:
    registry = open_registry(tmp_path)
    first = registry.create("orders", 1, {})
    registry.delete("orders")
    assert registry.create("orders", 1, {}).id != first.id


@pytest.mark.parametrize(
    ("name", "count", "code"),
    [
        ("orders", 1, ErrorCode.TOPIC_ALREADY_EXISTS),
        ("a_b", 1, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("../etc", 1, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("", 1, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("x" * 250, 1, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("new", 0, ErrorCode.INVALID_PARTITIONS),
        ("new", 99, ErrorCode.INVALID_PARTITIONS),
    ],
)
def test_a_topic_that_cannot_be_is_refused_with_its_own_code(
    tmp_path: Path, name: str, count: int, code: ErrorCode
) -> None:
    registry = open_registry(tmp_path)
    registry.create("orders", 1, {})
    registry.create("a.b", 1, {})
    with pytest.raises(KafkaError) as refused:
        registry.create(name, count, {})
    assert refused.value.code is code


def test_producer_ids_never_repeat_over_restarts(tmp_path: Path) -> None:
    given_out = [open_registry(tmp_path).next_producer_id() for _ in range(3)]
    registry = open_registry(tmp_path)
    given_out += [registry.next_producer_id() for _ in range(1_500)]
    assert len(set(given_out)) == len(given_out)


def test_a_topic_id_is_a_uuid(tmp_path: Path) -> None:
    assert isinstance(open_registry(tmp_path).create("t", 1, {}).id, UUID)
