"""What a broker knows of a partition when it starts, whatever has become of its files."""

from __future__ import annotations

from pathlib import Path

from tests.replication.bench import QUICK, Bench, append


async def test_a_watermark_that_stands_behind_damage_keeps_no_broker_from_starting(tmp_path: Path) -> None:
    """Found by the simulation of clusters: where it stood cannot be looked up. The leader says it anew."""
    bench = Bench(tmp_path)
    partition = bench.partition(**QUICK)
    for _ in range(3):
        append(partition)
    partition.log.close()
    (file,) = (tmp_path / "t-0").glob("*.log")
    content = bytearray(file.read_bytes())
    last = 2 * len(content) // 3
    content[last + 8 : last + 12] = bytes(4)  # its length
    file.write_bytes(content)

    again = bench.partition(clean=False, recovery_point=3, **QUICK)
    again.restore_watermark(2)
    assert again.high_watermark.offset == 0
    assert again.log.next_offset == 3
