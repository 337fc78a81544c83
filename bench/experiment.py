"""One row of the benchmark: what is measured, on whom, and how its rounds become figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from bench.arena import Arena
from bench.figures import Kind, of_rounds, order_of_round
from bench.load import LoadFailed
from bench.peers.process import PeerUnavailable

ALL = ("clarion", "kafka", "nats", "rabbitmq")
STREAMS = ("clarion", "kafka", "nats")
KAFKA_WIRE = ("clarion", "kafka")
Sample = dict[str, float]


@dataclass(frozen=True, slots=True)
class Metric:
    label: str
    kind: Kind
    digits: int = 0


METRICS = {
    "mb_per_s": Metric("MB/s", Kind.RATE),
    "messages_per_s": Metric("messages/s", Kind.RATE),
    "requests_per_s": Metric("requests/s", Kind.RATE),
    "cpu_s_per_gb": Metric("CPU s/GB", Kind.COST, 2),
    "cpu_us_per_request": Metric("CPU µs/request", Kind.COST, 1),
    "cpu_us_per_message": Metric("CPU µs/message", Kind.COST, 1),
    "p50_ms": Metric("p50 ms", Kind.TAIL, 3),
    "p90_ms": Metric("p90 ms", Kind.TAIL, 3),
    "p99_ms": Metric("p99 ms", Kind.TAIL, 3),
    "p999_ms": Metric("p99.9 ms", Kind.TAIL, 3),
    "calm_p99_ms": Metric("p99 ms, nobody asks over HTTP", Kind.TAIL, 3),
    "beside_p99_ms": Metric("p99 ms, HTTP at its full share", Kind.TAIL, 3),
    "control_p99_ms": Metric("p99 ms, HTTP on a broker beside it", Kind.TAIL, 3),
    "p99_growth": Metric("times the calm p99", Kind.TAIL, 2),
    "p99_growth_own": Metric("times the p99 with HTTP beside it", Kind.TAIL, 2),
    "streams_kept": Metric("of the readers' rate", Kind.TAIL, 2),
    "queue_kept": Metric("of the queue's rate", Kind.TAIL, 2),
    "webhook_kept": Metric("of the webhook's rate", Kind.TAIL, 2),
    "first_ack_s": Metric("seconds", Kind.COST, 3),
    "ready_s": Metric("seconds", Kind.COST, 3),
    "rss_mb": Metric("MB resident", Kind.COST),
    "idle_mb": Metric("MB resident", Kind.COST),
    "gap_s": Metric("s without an acknowledgement", Kind.TAIL, 2),
    "elected_s": Metric("s until all have new leaders", Kind.TAIL, 2),
    "refill_s": Metric("s to full replication", Kind.TAIL, 2),
    "kb_per_connection": Metric("KB/connection", Kind.COST, 1),
    "cpu_s_per_m": Metric("Spark's CPU s/million", Kind.COST, 2),
    "batch_1_ms": Metric("ms, 1 partition", Kind.COST),
    "batch_10_ms": Metric("ms, 10, 9 of them empty", Kind.COST),
    "batch_200_ms": Metric("ms, 200, 199 of them empty", Kind.COST),
    "batch_200_full_ms": Metric("ms, 200, none of them empty", Kind.COST),
    "empty_partition_ms": Metric("ms per empty partition", Kind.COST, 3),
    "batch_idle_ms": Metric("ms, with an idle source", Kind.COST),
    "idle_source_ms": Metric("ms added by it", Kind.COST, 1),
    "files": Metric("files", Kind.COST),
    "file_mb": Metric("MB/file", Kind.RATE, 1),
    "python_mb": Metric("MB in Python at most", Kind.COST),
    "load_cpu_share": Metric("load generator, cores", Kind.COST, 2),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """`measure` runs one round on one peer and returns its sample; `metrics` are those the table shows."""

    id: str
    title: str
    acks: str
    durability: str
    metrics: tuple[str, ...]
    measure: Callable[[Arena, str], Sample]
    peers: tuple[str, ...] = STREAMS
    rounds_max: int = 99
    rival: str = "kafka"  # whom Clarion's figures are divided by


@dataclass(slots=True)
class Outcome:
    """What an experiment gave: per peer its rounds, or why there are none."""

    experiment: Experiment
    rounds: dict[str, list[Sample]] = field(default_factory=dict)
    why_not: dict[str, str] = field(default_factory=dict)

    def figure(self, peer: str, metric: str) -> float | None:
        """A round in which the peer fell behind the load's rate says nothing about its latency and does not count."""
        sustained = [sample for sample in self.rounds.get(peer, []) if not sample.get("saturated")]
        values = [sample[metric] for sample in sustained if metric in sample]
        return of_rounds(METRICS[metric].kind, values) if values else None

    def is_saturated(self, peer: str) -> bool:
        """Whether this peer kept up with the rate in no round at all."""
        rounds = self.rounds.get(peer, [])
        return bool(rounds) and all(sample.get("saturated") for sample in rounds)


def run(experiment: Experiment, arena: Arena, peers: Sequence[str], tell: Callable[[str], None]) -> Outcome:
    """All rounds, interleaved: every peer has its turn in every round, and who begins alternates."""
    outcome = Outcome(experiment)
    taking_part = [peer for peer in experiment.peers if peer in peers or peer not in ALL]
    for number in range(min(arena.sizes.rounds, experiment.rounds_max)):
        for peer in order_of_round(taking_part, number):
            if peer not in outcome.why_not:
                tell(f"{experiment.title} · {peer} · round {number + 1}")
                _one_round(experiment, arena, peer, outcome)
    return outcome


def _one_round(experiment: Experiment, arena: Arena, peer: str, outcome: Outcome) -> None:
    try:
        if peer in ALL and experiment.durability in ("page-cache", "fsync"):
            arena.server(peer, experiment.durability)  # started and warmed before the machine is asked to be quiet
        arena.wait_for_quiet()
        sample = experiment.measure(arena, peer)
    except PeerUnavailable as reason:
        outcome.why_not[peer] = arena.why_not[peer] = str(reason)
    except (LoadFailed, OSError, RuntimeError) as failure:
        outcome.why_not[peer] = f"failed: {failure}"
    else:
        outcome.rounds.setdefault(peer, []).append(with_costs(sample))


def with_costs(sample: Sample) -> Sample:
    """The broker's CPU per GB and per request beside every rate."""
    cpu = sample.get("broker_cpu_s")
    if cpu is None:
        return sample
    costs = {}
    if sample.get("gb"):
        costs["cpu_s_per_gb"] = cpu / sample["gb"]
    if sample.get("requests"):
        costs["cpu_us_per_request"] = cpu / sample["requests"] * 1e6
    if sample.get("messages"):
        costs["cpu_us_per_message"] = cpu / sample["messages"] * 1e6
    return sample | costs
