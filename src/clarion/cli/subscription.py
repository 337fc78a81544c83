"""`clarion subscription`: named readers with rules of their own, made, looked at and looked after."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Annotated, Any, Final

import typer

from clarion.cli import completion
from clarion.cli.errors import UsageError
from clarion.cli.http_link import HttpLink, action_on, group_path
from clarion.cli.link import BootstrapOption, JsonOption, Link
from clarion.cli.subscription_making import alter, create, report
from clarion.cli.subscription_rules import endpoint_line, rule_rows
from clarion.cli.table import Column, clean, show_json, show_rows
from clarion.cli.topic import confirm
from clarion.cli.units import count_text, duration_text, plural, time_text
from clarion.model.errors import KafkaError
from clarion.model.seeking import Seek

commands = typer.Typer(help="Make, look at, pause, move and delete subscriptions.")

NameArgument = Annotated[
    str,
    typer.Argument(metavar="NAME", help="The subscription's name, or a group's id.", autocompletion=completion.groups),
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
_WITH_GROUPS: Final = "/v1/groups"


def add_to(app: typer.Typer) -> None:
    app.add_typer(commands, name="subscription")


for _command in (create, alter):
    commands.command()(_command)


@commands.command("list")
def list_(context: typer.Context, bootstrap: BootstrapOption = None, as_json: JsonOption = False) -> None:
    """List subscriptions, and the groups that Kafka's clients have made.

    Example:

        clarion subscription list
    """
    rows = _http(context, bootstrap).ask("GET", _WITH_GROUPS)["groups"]
    shown = [
        {**row, "reads": row.get("pattern") or ", ".join(row.get("topics") or ()), "kind": _kind(row)} for row in rows
    ]
    columns = [
        Column("name", "NAME", style="cyan"),
        Column("kind", "KIND"),
        Column("reads", "READS"),
        Column("state", "STATE"),
    ]
    show_rows(rows if as_json else shown, columns, as_json=as_json, none="no subscriptions yet")


@commands.command()
def describe(
    context: typer.Context, name: NameArgument, bootstrap: BootstrapOption = None, as_json: JsonOption = False
) -> None:
    """Show its rules, its members, how far it is, and what is in whose hands.

    Example:

        clarion subscription describe invoices
    """
    found = _http(context, bootstrap).ask("GET", group_path(name))
    if as_json:
        show_json(found)
        return
    parts = [found["mode"], plural(len(found["members"]), "member"), f"{plural(found['lag'], 'message')} behind"]
    if found["in_flight"]:
        parts.append(f"{count_text(found['in_flight'])} in flight")
    if found.get("oldest_unacknowledged_ms") is not None:
        parts.append(f"the oldest waits for {duration_text(found['oldest_unacknowledged_ms'])}")
    if (found.get("subscription") or {}).get("paused"):
        parts.append("paused")
    print(f"{clean(name)}: {', '.join(parts)}")
    letters = found.get("dead_letters")
    if letters and letters["count"]:
        print(f"{plural(letters['count'], 'dead letter')} in {clean(letters['topic'])}")
    if found.get("endpoint"):
        print(clean(endpoint_line(found["endpoint"])))
    rules = rule_rows(found.get("subscription") or {})
    if rules:
        show_rows(rules, [Column("rule", "RULE"), Column("value", "VALUE", clean)], as_json=False)
    if found["members"]:
        show_rows(found["members"], _MEMBER_COLUMNS, as_json=False)
    show_rows(found["partitions"], _PARTITION_COLUMNS, as_json=False, none="none of its topics is there yet")


@commands.command()
def peek(
    context: typer.Context,
    name: NameArgument,
    messages: Annotated[int, typer.Option("--messages", "-n", metavar="N", help="How many.", min=1, max=1000)] = 10,
    bootstrap: BootstrapOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the messages that come next. Nobody gets them by this, and none is counted as delivered.

    Example:

        clarion subscription peek invoices --messages 3
    """
    found: list[dict[str, Any]] = []
    for broker in _http(context, bootstrap).each():  # each knows of the partitions that it leads
        if len(found) < messages:
            found += broker.ask("POST", action_on(name, "peek"), max_messages=messages - len(found))["messages"]
    found.sort(key=lambda one: (one["topic"], one["partition"], one["offset"]))
    if as_json:
        show_json(found)
        return
    rows = [
        {
            **one,
            **{part: _bytes_text(one, part) for part in ("key", "value")},
            "at": time_text(one.get("timestamp", -1)),
        }
        for one in found
    ]
    show_rows(rows, _PEEK_COLUMNS, as_json=False, none="nothing waits")


@commands.command()
def purge(
    context: typer.Context,
    name: NameArgument,
    yes: YesOption = False,
    bootstrap: BootstrapOption = None,
    as_json: JsonOption = False,
) -> None:
    """Pass over all that waits; the topic keeps it. Its consumers have to be stopped.

    Example:

        clarion subscription purge invoices --yes
    """
    confirm(f"Pass over all messages that wait for {name}?", yes)
    done = _http(context, bootstrap).ask("POST", action_on(name, "purge"))
    report(done, as_json, f"{plural(done['passed_over'], 'message')} passed over")


@commands.command()
def pause(
    context: typer.Context, name: NameArgument, bootstrap: BootstrapOption = None, as_json: JsonOption = False
) -> None:
    """Keep messages back: nobody gets any until it is resumed.

    Example:

        clarion subscription pause invoices
    """
    report(_http(context, bootstrap).ask("POST", action_on(name, "pause")), as_json, f"{clean(name)} is paused")


@commands.command()
def resume(
    context: typer.Context, name: NameArgument, bootstrap: BootstrapOption = None, as_json: JsonOption = False
) -> None:
    """Deliver messages again after a pause.

    Example:

        clarion subscription resume invoices
    """
    report(_http(context, bootstrap).ask("POST", action_on(name, "resume")), as_json, f"{clean(name)} goes on")


@commands.command()
def seek(
    context: typer.Context,
    name: NameArgument,
    to: Annotated[
        str | None, typer.Option("--to", metavar="TO", help="earliest, latest, a time, or 1h: so long ago.")
    ] = None,
    offset: Annotated[
        list[str] | None, typer.Option("--offset", metavar="TOPIC:P:N", help="Read partition P from offset N on.")
    ] = None,
    bootstrap: BootstrapOption = None,
    as_json: JsonOption = False,
) -> None:
    """Move it to another place in its topics. Its consumers have to be stopped.

    Examples:

        clarion subscription seek invoices --to earliest
        clarion subscription seek billing --offset orders:0:1
    """
    if (to is None) == (not offset):
        raise UsageError("say where to: --to, or --offset once or more")
    body: dict[str, Any] = {"offsets": _offsets(offset or [])} if to is None else {"to": to}
    try:
        Seek.from_json(body, now_ms=0)
    except KafkaError as error:
        raise UsageError(error.message) from None
    done = _http(context, bootstrap).ask("POST", action_on(name, "seek"), body)
    report(done, as_json, f"{clean(name)} was moved")


@commands.command()
def redrive(
    context: typer.Context,
    name: NameArgument,
    messages: Annotated[int | None, typer.Option("--messages", "-n", metavar="N", help="At most.", min=1)] = None,
    bootstrap: BootstrapOption = None,
    as_json: JsonOption = False,
) -> None:
    """Send its dead letters back to the topics they come from.

    Example:

        clarion subscription redrive invoices
    """
    done: dict[str, Any] = {"sent": 0, "left": 0, "stopped_at": None}
    for broker in _http(context, bootstrap).each():  # each sends what is in the partitions that it leads
        if messages is None or done["sent"] < messages:
            body = {} if messages is None else {"max_messages": messages - done["sent"]}
            told = broker.ask("POST", action_on(name, "redrive"), body)
            done |= {what: done[what] + told[what] for what in ("sent", "left")}
            done["stopped_at"] = done["stopped_at"] or told.get("stopped_at")
    left = f"; {plural(done['left'], 'dead letter')} left" if done.get("left") else ""
    why = f" ({clean(done['stopped_at'])})" if done.get("stopped_at") else ""
    report(done, as_json, f"{plural(done['sent'], 'message')} sent back{left}{why}")


@commands.command()
def delete(
    context: typer.Context,
    name: NameArgument,
    yes: YesOption = False,
    bootstrap: BootstrapOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete it and its position. Its dead letter topic stays.

    Example:

        clarion subscription delete invoices --yes
    """
    confirm(f"Delete {name} and its position?", yes)
    done = _http(context, bootstrap).ask("DELETE", group_path(name))
    report(done or {"name": name}, as_json, f"deleted {clean(name)}")


def _http(context: typer.Context, bootstrap: str | None) -> HttpLink:
    return HttpLink(Link.of(context, bootstrap))


def _offsets(said: list[str]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for one in said:
        topic, _, rest = one.rpartition(":")
        topic, _, partition = topic.rpartition(":")
        if not topic or not partition.isdigit() or not rest.isdigit():
            raise UsageError(f"--offset {one}: write TOPIC:PARTITION:OFFSET, for example orders:0:42")
        found.setdefault(topic, {})[partition] = int(rest)
    return found


def _kind(row: Mapping[str, Any]) -> str:
    words = [str(row.get("mode") or "")]
    if not row.get("is_subscription", True):
        words.append("group")
    if row.get("push"):
        words.append("push")
    if row.get("paused"):
        words.append("paused")
    return ", ".join(words)


def _bytes_text(message: Mapping[str, Any], name: str) -> str:
    if message.get(f"{name}_base64") is not None:
        return repr(base64.b64decode(message[f"{name}_base64"]))
    return _or_dash(message.get(name))


def _or_dash(value: object) -> str:
    return "-" if value is None else str(value)


_MEMBER_COLUMNS: Final = [
    Column("id", "MEMBER", clean, style="cyan"),
    Column("client", "CLIENT", clean),
    Column("host", "HOST", clean),
]
_PARTITION_COLUMNS: Final = [
    Column("topic", "TOPIC", style="cyan"),
    Column("partition", "PARTITION", right=True),
    Column("position", "POSITION", _or_dash, right=True),
    Column("end_offset", "END", _or_dash, right=True),
    Column("lag", "LAG", _or_dash, right=True),
    Column("in_flight", "IN FLIGHT", _or_dash, right=True),
]
_PEEK_COLUMNS: Final = [
    Column("topic", "TOPIC", style="cyan"),
    Column("partition", "PARTITION", right=True),
    Column("offset", "OFFSET", right=True),
    Column("at", "TIME"),
    Column("key", "KEY", clean),
    Column("value", "VALUE", lambda value: clean(value)[:200]),
    Column("deliveries", "DELIVERIES", right=True),
]
