"""`clarion demo`: a broker, a live stream of orders, several readers of the one log, counted to the last message."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clarion.cli.errors import CliError
from clarion.cli.humane import plural
from clarion.cli.interrupt import terminate_interrupts
from clarion.cli.link import BootstrapOption, Link, admin_api, result_of

if TYPE_CHECKING:
    from clarion.cli.demo_cast import Publisher, Reader
    from clarion.cli.demo_ledger import Verdict
    from clarion.cli.demo_screen import Screen

_REFRESH_SECONDS = 0.1
_DRAIN_SECONDS_MAX = 30.0  # without any progress for so long, what is missing is missing
_LATE_AFTER = (0.3, 6.0)  # the third member joins after this share of --seconds, or so many seconds
_REPLAY_AFTER = (0.5, 12.0)


def add_to(app: typer.Typer) -> None:
    app.command()(demo)


def demo(
    context: typer.Context,
    seconds: Annotated[float | None, typer.Option(metavar="N", help="End after N seconds. Default: Ctrl-C.")] = None,
    rate: Annotated[float, typer.Option(metavar="N", help="About N orders a second.")] = 1_000.0,
    bootstrap: BootstrapOption = None,
) -> None:
    """See a broker at work: one stream of orders, readers that fan out, share the work, and replay it.

    Starts its own broker in a temporary directory, unless --bootstrap names one. Succeeds only if every message
    arrived at every reader.
    """
    if seconds is not None and not 1 <= seconds < 1e6:
        raise CliError(f"--seconds {seconds:g}: at least 1")
    if not 1 <= rate <= 20_000:
        raise CliError(f"--rate {rate:g}: from 1 to 20,000 orders a second")
    with terminate_interrupts():
        if bootstrap is not None:
            _play(Link.of(context, bootstrap), bootstrap, seconds, rate)
            return
        from clarion.cli.demo_broker import own_broker

        with tempfile.TemporaryDirectory(prefix="clarion-demo-") as folder, own_broker(Path(folder)) as address:
            _play(Link.of(context, address), address, seconds, rate)


def _play(link: Link, where: str, seconds: float | None, rate: float) -> None:
    from clarion.cli.demo_screen import show_summary

    _make_topic(link)
    started = time.monotonic()
    verdicts = Stage(link, where, seconds, rate).perform()
    show_summary(verdicts, time.monotonic() - started)
    bad = [each for each in verdicts if not each.is_good]
    if bad:
        names = ", ".join(each.reader for each in bad)
        raise CliError(f"not every message arrived as it should at: {names}")
    orders, repeated = verdicts[0].expected, sum(each.repeated for each in verdicts)
    once = "exactly once" if not repeated else f"at least once ({plural(repeated, 'repeat')}, in the group)"
    print(f"every one of {plural(orders, 'order')} arrived at every reader, {once}")


class Stage:
    """The cast, and when each comes on."""

    def __init__(self, link: Link, where: str, seconds: float | None, rate: float) -> None:
        from clarion.cli.demo_cast import Publisher, Reader, Role
        from clarion.cli.demo_ledger import OrderWatch, Tally
        from clarion.cli.demo_screen import Screen

        self._seconds = seconds
        self._started = time.monotonic()
        shared = Tally()
        self.publisher: Publisher = Publisher(link, rate)
        self.alone: list[Reader] = [
            Reader(Role(name, what, group), link, Tally(), self._say, OrderWatch())
            for name, what, group in (
                ("billing", "fan out", "billing"),
                ("analytics", "fan out", "analytics"),
                ("replay", "from the start", None),
            )
        ]
        self.sharing: list[Reader] = [
            Reader(Role(f"warehouse-{number}", "shares the work", "warehouse"), link, shared, self._say, None)
            for number in (1, 2, 3)
        ]
        billing, analytics, replay = self.alone
        self.readers = [billing, analytics, *self.sharing, replay]
        self._entrances: list[tuple[float, str, Sequence[Reader]]] = [
            (0.0, "", [billing, analytics, *self.sharing[:2]]),
            (self._moment(_LATE_AFTER), "warehouse-3 joins: the group shares the work anew", self.sharing[2:]),
            (self._moment(_REPLAY_AFTER), "replay starts at the very first order", [replay]),
        ]
        self.screen: Screen = Screen(self.publisher, self.readers, where, seconds)

    def perform(self) -> list[Verdict]:
        try:
            with self.screen:
                self._go_live()
                self._drain()
        finally:
            self._leave()
        return self._verdicts()

    def _go_live(self) -> None:
        self.publisher.start()
        try:
            while self._seconds is None or self._elapsed() < self._seconds:
                self._let_in(self._elapsed())
                self._look("live")
        except KeyboardInterrupt:
            self._say("stopping")
        self._let_in(float("inf"))
        self.publisher.stopping.set()

    def _drain(self) -> None:
        """Go on until everybody has everything, or nobody gets any further."""
        best, since = -1, time.monotonic()
        while not self._has_everything() and time.monotonic() - since < _DRAIN_SECONDS_MAX:
            total = sum(each.tally.distinct for each in self.readers)
            if total > best:
                best, since = total, time.monotonic()
            if any(each.error for each in self.readers):
                break
            self._look("draining")
        self._look("done")

    def _has_everything(self) -> bool:
        if self.publisher.is_alive():
            return False
        wanted = self.publisher.acknowledged.distinct
        return all(each.tally.distinct >= wanted for each in self.readers)

    def _let_in(self, elapsed: float) -> None:
        while self._entrances and self._entrances[0][0] <= elapsed:
            _, news, readers = self._entrances.pop(0)
            if news:
                self._say(news)
            for each in readers:
                each.start()

    def _leave(self) -> None:
        self.publisher.stopping.set()
        for each in self.readers:
            each.stop()

    def _look(self, phase: str) -> None:
        self.screen.show(self._elapsed(), phase)
        time.sleep(_REFRESH_SECONDS)

    def _verdicts(self) -> list[Verdict]:
        from clarion.cli.demo_ledger import verdict

        if self.publisher.failed:
            raise CliError(f"{self.publisher.failed} orders were not acknowledged: {self.publisher.error}")
        for each in self.readers:
            if each.error:
                raise CliError(f"{each.role.name} failed: {each.error}")
        acknowledged = self.publisher.acknowledged
        group = verdict("warehouse (3 members)", acknowledged, self.sharing[0].tally, 0, may_repeat=True)
        alone = [
            verdict(each.role.name, acknowledged, each.tally, each.watch.breaks if each.watch else 0, may_repeat=False)
            for each in self.alone
        ]
        return [alone[0], alone[1], group, alone[2]]

    def _say(self, news: str) -> None:
        self.screen.say(self._elapsed(), news)

    def _elapsed(self) -> float:
        return time.monotonic() - self._started

    def _moment(self, share_or_seconds: tuple[float, float]) -> float:
        share, at = share_or_seconds
        return at if self._seconds is None else min(share * self._seconds, at)


def _make_topic(link: Link) -> None:
    from clarion.cli.demo_cast import PARTITIONS, TOPIC

    admin = link.admin()  # must outlive its call
    result_of(admin.create_topics([admin_api().NewTopic(TOPIC, PARTITIONS, -1)])[TOPIC], link, f"create {TOPIC}")
