"""Names that mean something to a file system, a log or a terminal are refused, or are only names."""

from __future__ import annotations

from tests.fuzz.neighbour import Target
from tests.raw_client import RawClient
from tests.traps import words

INVALID_TOPIC = 17
UNKNOWN_TOPIC = 3
PATHS = ("../evil", "..", ".", "", "a/b", "a\0b", "/etc/passwd", "x" * 250, "ü", "a\nb", "a b", "-" * 300)
GROUPS = ("../evil", "a\0b", "a\nb\r\n2026 ERROR forged", "x" * 30_000, "\U0001f4a5" * 100, "' OR 1=1")


def folders(target: Target) -> list[str]:
    """Of partitions: what is a file the broker may write at any time."""
    return sorted(path.name for path in target.server.data_dir.iterdir() if path.is_dir())


def test_topics_cannot_leave_the_data_directory(target: Target):
    before = folders(target)
    with RawClient(target.bootstrap) as raw:
        for name in PATHS:
            wanted = {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
            (answer,) = raw.ask("create_topics", 4, topics=[wanted], timeout=1000, validate_only=False).topics
            assert answer.error_code == INVALID_TOPIC, name
            (answer,) = raw.ask("metadata", 8, topics=[{"name": name}], allow_auto_topic_creation=True).topics
            assert answer.error_code == INVALID_TOPIC, name
            data = words.topic_data(name, words.batch(1))
            answer = raw.ask("produce", 8, transactional_id=None, acks=-1, timeout=1000, topic_data=data)
            assert answer.responses[0].partition_responses[0].error_code == UNKNOWN_TOPIC, name
    assert folders(target) == before


def test_groups_may_have_any_name_and_write_no_line_of_the_log(target: Target):
    with RawClient(target.bootstrap) as raw:
        for name in GROUPS:
            words.find_coordinator(raw, name)
            place = {"partition_index": 0, "committed_offset": 1, "committed_metadata": name[:100]}
            topics = [{"name": target.canary.topic, "partitions": [place]}]
            raw.ask("offset_commit", 2, group_id=name, generation_id_or_member_epoch=-1, member_id="",
                    retention_time=-1, topics=topics)  # fmt: skip
            raw.ask("describe_groups", 0, groups=[name])
            raw.ask("delete_groups", 0, groups_names=[name])
    assert "\n2026 ERROR forged" not in target.server.stderr
