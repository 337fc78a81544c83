"""A process at a local store, for tests to kill and freeze: `python -m tests.cluster.local_process FOLDER NAME TTL`.

It holds the key `alive/NAME` by a lease and counts in the key `n` by compare and set, saying `counted`, or `unknown`
where no answer came, after each; `ready owner` or `ready client` first.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress

from clarion.cluster.coordination import LeaseId, OutcomeUnknownError, Put, absent, unchanged
from clarion.cluster.local_store import LocalStore


def say(word: str) -> None:
    print(word, flush=True)


async def hold(store: LocalStore, name: str, ttl_seconds: float) -> None:
    lease = await store.grant_lease(ttl_seconds)
    await store.transact((), [Put(f"alive/{name}", b"", lease)])
    say("ready owner" if store.is_owner else "ready client")
    await asyncio.gather(count(store), keep(store, lease, ttl_seconds))  # who fails ends the process, with its reason


async def keep(store: LocalStore, lease: LeaseId, ttl_seconds: float) -> None:
    while True:
        await asyncio.sleep(ttl_seconds / 10)
        with suppress(OutcomeUnknownError):
            await store.keep_alive(lease)


async def count(store: LocalStore) -> None:
    while True:
        try:
            found = await store.get("n")
        except OutcomeUnknownError:
            continue
        compare = unchanged(found) if found else absent("n")
        value = b"%d" % (int(found.value) + 1 if found else 1)
        try:
            if (await store.transact([compare], [Put("n", value)])).succeeded:
                say("counted")
        except OutcomeUnknownError:
            say("unknown")
        await asyncio.sleep(0.002)


def fail(error: Exception) -> None:
    sys.exit(f"the store failed: {error}")


async def main(folder: str, name: str, ttl_seconds: str) -> None:
    await hold(await LocalStore.open(folder, fail, answer_seconds=1), name, float(ttl_seconds))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
