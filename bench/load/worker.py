"""The load generator's process: a job in JSON on stdin, its figures in JSON on stdout.

Run by `bench.load.run_job`; a process of its own, so that load and harness share neither interpreter nor core.
"""

from __future__ import annotations

import gc
import json
import sys
from importlib import import_module

# job name: module, job class, function; modules load on demand, so that a small job starts fast
JOBS = {
    "produce": ("bench.load.produce", "ProduceJob", "run"),
    "ping": ("bench.load.ping", "PingJob", "run"),
    "consume": ("bench.load.consume", "ConsumeJob", "run"),
    "fanout": ("bench.load.consume", "FanoutJob", "run_fanout"),
    "queue": ("bench.load.queues", "QueueJob", "run"),
    "failover": ("bench.load.failover", "FailoverJob", "run"),
    "latency": ("bench.load.latency", "LatencyJob", "run"),
    "push": ("bench.load.push", "PushJob", "run"),
    "push-backlog": ("bench.load.push", "PushJob", "run_backlog"),
    "stalled": ("bench.load.stalled", "StalledJob", "run"),
    "http-write": ("bench.load.http", "HttpJob", "run_write"),
    "http-pull": ("bench.load.http", "HttpJob", "run_pull"),
    "idle": ("bench.load.idle", "IdleJob", "run"),
    "users-produce": ("bench.load.users", "UsersProduceJob", "run_produce"),
    "users-consume": ("bench.load.users", "UsersConsumeJob", "run_consume"),
    "queue-client": ("bench.load.queue_clients", "QueueClientJob", "run"),
    "raw-in": ("bench.load.raw", "RawJob", "run_in"),
    "raw-out": ("bench.load.raw", "RawJob", "run_out"),
    "raw-ping": ("bench.load.raw", "RawJob", "run_ping"),
}


def main() -> int:
    wanted = json.load(sys.stdin)
    module_name, job_name, function_name = JOBS[wanted["job"]]
    module = import_module(module_name)
    job = getattr(module, job_name)(**wanted["settings"])
    gc.freeze()  # prebuilt frames are never garbage; do not look at them again
    print(json.dumps(getattr(module, function_name)(job)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
