"""`clarion demo`: a broker, a live stream of orders, several readers of the one log, counted to the last message."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clarion.cli.errors import CliError
from clarion.cli.interrupt import terminate_interrupts
from clarion.cli.link import BootstrapOption, Link, admin_api, result_of
from clarion.cli.units import plural

if TYPE_CHECKING:
    from clarion.cli.demo.clients import OrderReader, Publisher
    from clarion.cli.demo.ledger import ReaderVerdict
    from clarion.cli.demo.screen import Screen
    from clarion.cli.demo.spark import SparkPart

_REFRESH_SECONDS = 0.1
_DRAIN_SECONDS_MAX = 30.0  # without any progress for so long, what is missing is missing
_SPARK_DRAIN_SECONDS_MAX = 300.0  # Spark's first batch starts a dozen processes, which a busy machine does slowly
_LATE_AFTER = (0.3, 6.0)  # the third member joins after this share of --seconds, or so many seconds
_REPLAY_AFTER = (0.5, 12.0)


def add_to(app: typer.Typer) -> None:
    app.command()(demo)


def demo(
    context: typer.Context,
    seconds: Annotated[float | None, typer.Option(metavar="N", help="End after N seconds. Default: Ctrl-C.")] = None,
    rate: Annotated[float, typer.Option(metavar="N", help="About N orders a second.")] = 1_000.0,
    with_spark: Annotated[bool, typer.Option("--spark/--no-spark", help="Pipelines too, where Spark is there.")] = True,
    bootstrap: BootstrapOption = None,
) -> None:
    """See a broker at work: one stream of orders, readers that fan out, share the work, and replay it.

    With Spark installed there is a stream of log lines, too: a rollup that a reader prints, an archive in a table.
    Starts its own broker in a temporary directory, unless --bootstrap names one. Succeeds only if every message
    arrived at every reader, and in the table exactly once.
    """
    if seconds is not None and not 1 <= seconds < 1e6:
        raise CliError(f"--seconds {seconds:g}: at least 1")
    if not 1 <= rate <= 20_000:
        raise CliError(f"--rate {rate:g}: from 1 to 20,000 orders a second")
    with terminate_interrupts(), tempfile.TemporaryDirectory(prefix="clarion-demo-") as folder:
        if bootstrap is not None:
            _play(Link.of(context, bootstrap), seconds, rate, Path(folder), with_spark)
            return
        from clarion.cli.demo.own_broker import own_broker

        with own_broker(Path(folder)) as address:
            _play(Link.of(context, address), seconds, rate, Path(folder), with_spark)


def _play(link: Link, seconds: float | None, rate: float, folder: Path, with_spark: bool) -> None:
    from clarion.cli.demo.screen import show_summary
    from clarion.cli.demo.spark import is_spark_here

    spark_folder = folder if with_spark and is_spark_here() else None
    if with_spark and spark_folder is None:
        print("with Spark there is more to see, pipelines and tables: pip install 'clarion-broker[spark]'")
    _make_topics(link, spark_folder is not None)
    stage = Stage(link, seconds, rate, spark_folder)
    verdicts = stage.perform()
    show_summary(verdicts, stage.elapsed)
    bad = [each for each in verdicts if not each.is_good]
    if bad:
        names = ", ".join(each.reader for each in bad)
        raise CliError(f"not every message arrived as it should at: {names}")
    orders, repeated = verdicts[0].expected, sum(each.repeated for each in verdicts)
    once = "exactly once" if not repeated else f"at least once ({plural(repeated, 'repeat')}, in the group)"
    print(f"every one of {plural(orders, 'order')} arrived at every reader, {once}")
    if stage.spark is not None:
        lines = plural(stage.spark.publisher.acknowledged.distinct, "log line")
        print(f"every one of {lines} is in the Delta table exactly once; {stage.spark.sentence()}")


class Stage:
    """The cast, and when each comes on."""

    def __init__(self, link: Link, seconds: float | None, rate: float, spark_folder: Path | None) -> None:
        from clarion.cli.demo.clients import OrderPublisher, OrderReader, Role
        from clarion.cli.demo.ledger import OrderWatch, SeenCounts
        from clarion.cli.demo.screen import Screen

        self._seconds = seconds
        self._started = time.monotonic()
        self.elapsed = 0.0
        shared = SeenCounts()
        self.publisher: Publisher = OrderPublisher(link, rate)
        self.alone: list[OrderReader] = [
            OrderReader(Role(name, what, group), link, SeenCounts(), self._say, OrderWatch())
            for name, what, group in (
                ("billing", "fan out", "billing"),
                ("analytics", "fan out", "analytics"),
                ("replay", "from the start", None),
            )
        ]
        self.sharing: list[OrderReader] = [
            OrderReader(Role(f"warehouse-{number}", "shares the work", "warehouse"), link, shared, self._say, None)
            for number in (1, 2, 3)
        ]
        billing, analytics, replay = self.alone
        self.readers = [billing, analytics, *self.sharing, replay]
        self._entrances: list[tuple[float, str, Sequence[OrderReader]]] = [
            (0.0, "", [billing, analytics, *self.sharing[:2]]),
            (self._moment(_LATE_AFTER), "warehouse-3 joins: the group shares the work anew", self.sharing[2:]),
            (self._moment(_REPLAY_AFTER), "replay starts at the very first order", [replay]),
        ]
        self.spark: SparkPart | None = None
        if spark_folder is not None:
            from clarion.cli.demo.spark import SparkPart

            self.spark = SparkPart(link, spark_folder, rate, lambda line: self.screen.read_aloud(line), self._say)
        self.screen: Screen = Screen(self.publisher, self.readers, link.bootstrap, seconds, self.spark)

    def perform(self) -> list[ReaderVerdict]:
        try:
            with self.screen:
                self._go_live()
                self._drain()
        finally:
            self._leave()
        return self._verdicts()

    def _go_live(self) -> None:
        """The stream begins at once. Spark takes a while to start, and then reads from the first message."""
        self.publisher.start()
        if self.spark is not None:
            self._say("Spark starts beside the stream, and joins when it is up")
            self.spark.start()
            self.spark.go_live()
        try:
            while self._seconds is None or self._elapsed() < self._seconds:
                self._let_in(self._elapsed())
                self._look("live")
        except KeyboardInterrupt:
            self._say("stopping")
        self._let_in(float("inf"))
        self.publisher.stopping.set()
        self.elapsed = self._elapsed()
        if self.spark is not None:
            self.spark.end_of_events()

    def _drain(self) -> None:
        """Go on until everybody has everything, or nobody gets any further."""
        best, since = -1, time.monotonic()
        patience = _DRAIN_SECONDS_MAX if self.spark is None else _SPARK_DRAIN_SECONDS_MAX
        while not self._has_everything() and time.monotonic() - since < patience:
            total = sum(each.tally.distinct for each in self.readers) + (self.spark.progress if self.spark else 0)
            is_starting = self.spark is not None and not self.spark.is_ready
            if total > best or is_starting:
                best, since = total, time.monotonic()
            if any(each.error for each in self.readers):
                break
            self._look("draining")
        self._look("done")

    def _has_everything(self) -> bool:
        if self.publisher.is_alive():
            return False
        if self.spark is not None and not self.spark.has_everything:
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
        if self.spark is not None:
            self.spark.stop()

    def _look(self, phase: str) -> None:
        if self.spark is not None and phase == "live":
            _ = self.spark.is_ready  # whoever has failed is started again, or ends the show with the reason
        self.screen.show(self._elapsed(), phase)
        time.sleep(_REFRESH_SECONDS)

    def _verdicts(self) -> list[ReaderVerdict]:
        from clarion.cli.demo.ledger import verdict

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
        table = [self.spark.verdict()] if self.spark is not None else []
        return [alone[0], alone[1], group, alone[2], *table]

    def _say(self, news: str) -> None:
        self.screen.say(self._elapsed(), news)

    def _elapsed(self) -> float:
        return time.monotonic() - self._started

    def _moment(self, share_or_seconds: tuple[float, float]) -> float:
        share, at = share_or_seconds
        return at if self._seconds is None else min(share * self._seconds, at)


def _make_topics(link: Link, with_spark: bool) -> None:
    from clarion.cli.demo import spark
    from clarion.cli.demo.clients import PARTITIONS, TOPIC

    wanted = {TOPIC: PARTITIONS}
    if with_spark:
        wanted |= {spark.LOGS: spark.PARTITIONS, spark.HEALTH: 1}
    admin = link.admin()  # must outlive its calls
    made = admin.create_topics([admin_api().NewTopic(name, count, -1) for name, count in wanted.items()])
    for name, future in made.items():
        result_of(future, link, f"create {name}")
