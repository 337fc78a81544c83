"""The raw limits of the machine, in the same run: copy loops in the chunk sizes of produce and fetch, and the load
generator alone against a server that only answers."""

from __future__ import annotations

from bench.arena import Arena
from bench.experiment import Experiment, Sample
from bench.load import run_job

MACHINE = "machine"
_CHUNKS = (("64k", "64 KB chunks", 65536), ("1m", "1 MB chunks", 1 << 20))
_COPY = ("mb_per_s", "cpu_s_per_gb", "load_cpu_share")


def into_file() -> list[Experiment]:
    """The limit of produce, and the load generator of produce alone."""
    copies = [
        _row(f"raw-in-{label}", f"socket → file, {text}", "raw-in", _COPY, chunk_bytes=chunk, is_filling=True)
        for label, text, chunk in _CHUNKS
    ]
    sink = _row("raw-sink", "load generator alone, 64 KB batches, 4 connections", "raw-ping",
                ("mb_per_s", "load_cpu_share"), chunk_bytes=1 << 18, connections=4)  # fmt: skip
    return [*copies, sink]


def from_file() -> list[Experiment]:
    """The limit of consume."""
    return [
        _row(f"raw-out-{how}-{label}", f"file → socket, {how}, {text}", "raw-out", _COPY, chunk_bytes=chunk,
             use_sendfile=how == "sendfile")
        for how in ("sendfile", "pread")
        for label, text, chunk in _CHUNKS
    ]  # fmt: skip


def answers() -> list[Experiment]:
    """The load generator of the tiny requests alone."""
    return [
        _row(f"raw-tiny-{count}", f"load generator alone, tiny requests, {count} connection(s)", "raw-ping",
             ("requests_per_s", "load_cpu_share"), chunk_bytes=4096, connections=count)
        for count in (1, 50, 500)
    ]  # fmt: skip


def _row(
    name: str, title: str, job: str, metrics: tuple[str, ...], *, is_filling: bool = False, **settings: object
) -> Experiment:
    def measure(arena: Arena, peer: str) -> Sample:
        bounds: dict[str, object] = {"seconds": arena.sizes.seconds}
        if is_filling:
            bounds["total_bytes"] = arena.sizes.produce_bytes
        return run_job(job, folder=str(arena.tmpfs), **bounds, **settings)

    return Experiment(
        id=name, title=title, acks="–", durability="tmpfs", metrics=metrics, measure=measure, peers=(MACHINE,)
    )
