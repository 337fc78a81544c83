"""`clarion log-level`: what a running broker writes into its log, component by component."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from clarion.cli import completion
from clarion.cli.errors import CliError, UsageError
from clarion.cli.link import REQUEST_SECONDS_MAX, BootstrapOption, JsonOption, Link, admin_api, plain_errors, result_of
from clarion.cli.table import Column, show_rows
from clarion.world.log_levels import complaint_about, levels_by_component, merged

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

_SETTING: Final = "clarion.log.level"
_COLUMNS: Final = [
    Column("broker", "BROKER", right=True),
    Column("component", "COMPONENT", style="cyan"),
    Column("level", "LEVEL"),
]


def add_to(app: typer.Typer) -> None:
    app.command("log-level")(log_level)


def log_level(
    context: typer.Context,
    levels: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[LEVEL|COMPONENT=LEVEL]…",
            help="debug, info, warning or error; none: show them.",
            autocompletion=completion.levels,
        ),
    ] = None,
    broker: Annotated[int | None, typer.Option("--broker", metavar="ID", help="Of this broker alone.")] = None,
    reset: Annotated[bool, typer.Option("--reset", help="Back to what the broker was started with.")] = False,
    bootstrap: BootstrapOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show which log lines brokers write, or change it while they run.

    A level without a component is that of all that are not named. It holds until --reset, also after a restart.

    Examples:

        clarion log-level
        clarion log-level net=debug
        clarion log-level --reset
    """
    words = levels or []
    if words and reset:
        raise UsageError("either levels or --reset, not both")
    if complaint := complaint_about(",".join(words)) if words else None:
        raise UsageError(complaint)
    link = Link.of(context, bootstrap)
    admin = link.admin()
    brokers = _brokers(admin, link, broker)
    if words or reset:
        for each in brokers:
            _change(admin, link, each, None if reset else merged(_level_of(admin, link, each), words))
    rows = [
        {"broker": each, "component": component, "level": level}
        for each in brokers
        for component, level in levels_by_component(_level_of(admin, link, each)).items()
    ]
    show_rows(rows, _COLUMNS, as_json=as_json)


def _brokers(admin: AdminClient, link: Link, wanted: int | None) -> list[int]:
    with plain_errors(link):
        known = sorted(admin.list_topics(timeout=REQUEST_SECONDS_MAX).brokers)
    if wanted is not None and wanted not in known:
        raise CliError(f"there is no broker {wanted}; there are {', '.join(map(str, known))}")
    return known if wanted is None else [wanted]


def _level_of(admin: AdminClient, link: Link, broker: int) -> str:
    resource = _resource(broker)
    settings = result_of(admin.describe_configs([resource])[resource], link, f"broker {broker}")
    if _SETTING not in settings:
        raise CliError(
            f"broker {broker} has no setting {_SETTING}; Kafka's own tool is kafka-configs --entity-type broker-loggers"
        )
    return str(settings[_SETTING].value)


def _change(admin: AdminClient, link: Link, broker: int, level: str | None) -> None:
    does = admin_api().AlterConfigOpType.DELETE if level is None else admin_api().AlterConfigOpType.SET
    entry = admin_api().ConfigEntry(_SETTING, level, incremental_operation=does)
    resource = _resource(broker, incremental_configs=[entry])
    result_of(admin.incremental_alter_configs([resource])[resource], link, f"broker {broker}")


def _resource(broker: int, **more: Any) -> Any:
    return admin_api().ConfigResource(admin_api().ConfigResource.Type.BROKER, str(broker), **more)
