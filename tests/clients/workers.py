"""Group members that work by themselves: each polls, notes and commits in a thread of its own until told to leave."""

import sys
import threading
import traceback
from collections.abc import Callable, Sequence

from tests.clients.adapters.model import PATIENCE_S, Client, Incoming, Member, Outgoing, Refused
from tests.waiting import wait_for

PUMP_GAP_S = 0.003  # a message every few milliseconds: always some in flight while the group rebalances


class Worker:
    """One member at work."""

    def __init__(self, join: Callable[[], Member]) -> None:
        self.seen: list[Incoming] = []
        self.owned: set[tuple[str, int]] = set()
        self.problem: BaseException | None = None
        self._join = join
        self._leaving = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def leave(self) -> None:
        self._leaving.set()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), f"a member did not leave its group; it is at\n{self._stack()}"
        if self.problem:
            raise self.problem

    def _stack(self) -> str:
        frame = sys._current_frames().get(self._thread.ident or 0)
        return "".join(traceback.format_stack(frame)) if frame else "its end"

    def _work(self) -> None:
        try:
            member = self._join()
            try:
                while not self._leaving.is_set():
                    self._turn(member)
            finally:
                self.owned = set()
                self.seen.extend(member.close())
        except BaseException as problem:  # handed to the thread that waits for us
            self.problem = problem

    def _turn(self, member: Member) -> None:
        news = member.poll(0.2)
        self.owned = member.assignment()
        self.seen.extend(news)
        if news:
            try:
                member.commit()
            except Refused:
                pass  # the group has moved on meanwhile; whoever owns the partition now reads these again


class Pump:
    """Sends numbered messages round-robin over the partitions until told to stop."""

    def __init__(self, client: Client, topic: str, partitions: int) -> None:
        self.sent: list[bytes] = []
        self._stop = threading.Event()
        self._stream = client.stream()
        self._where = (topic, partitions)
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def stop(self) -> list[bytes]:
        self._stop.set()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "the pump did not stop"
        self._stream.finish()
        return self.sent

    def _work(self) -> None:
        topic, partitions = self._where
        while not self._stop.wait(PUMP_GAP_S):
            value = b"%d" % len(self.sent)
            self._stream.send(topic, Outgoing(value, partition=len(self.sent) % partitions))
            self.sent.append(value)


def wait_until_shared(workers: Sequence[Worker], partitions: set[tuple[str, int]]) -> None:
    """Wait for an assignment in which every partition has exactly one owner and every worker has some."""

    def shared() -> bool:
        for worker in workers:
            if worker.problem:
                raise worker.problem
        owned = [worker.owned for worker in workers]
        return all(owned) and sum(map(len, owned)) == len(partitions) and set().union(*owned) == partitions

    wait_for(shared, seconds=PATIENCE_S, what="an assignment without gaps and overlaps")
