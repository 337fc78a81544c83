"""`clarion subscription create` and `alter`: a subscription's rules, said and checked before a broker is asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final

import typer

from clarion.cli import completion
from clarion.cli.errors import UsageError
from clarion.cli.http_link import HttpLink, subscription_path
from clarion.cli.link import BootstrapOption, JsonOption, Link
from clarion.cli.table import clean, show_json
from clarion.model.errors import KafkaError
from clarion.model.subscription import FIELD_NAMES, Subscription

_ALL: Final = "/v1/subscriptions"
_NEVER_CHANGED: Final = frozenset({"name", "mode", "created", "revision"})

TopicOption = Annotated[
    list[str] | None,
    typer.Option(
        "--topic",
        "-t",
        metavar="TOPIC",
        help="To be read, by name or id; repeatable.",
        autocompletion=completion.topics,
    ),
]
PatternOption = Annotated[str | None, typer.Option(metavar="REGEX", help="All topics whose name matches.")]
PushOption = Annotated[str | None, typer.Option(metavar="URL", help="Send messages there, instead of waiting.")]
FilterOption = Annotated[str | None, typer.Option("--filter", metavar="CEL", help="Only messages that match.")]
RetentionOption = Annotated[str | None, typer.Option(metavar="14d|consumed", help="How long messages are kept for it.")]
AckTimeoutOption = Annotated[str | None, typer.Option(metavar="30s", help="Then another consumer gets the message.")]
MaxDeliveriesOption = Annotated[int | None, typer.Option(metavar="N", help="Then it is a dead letter.")]
BackoffMinOption = Annotated[str | None, typer.Option(metavar="1s", help="First pause before it comes again.")]
BackoffMaxOption = Annotated[str | None, typer.Option(metavar="10m", help="Longest pause.")]
DeadLetterTopicOption = Annotated[str | None, typer.Option(metavar="TOPIC", help="Default: NAME.dead-letters.")]
WindowOption = Annotated[int | None, typer.Option(metavar="N", help="Messages in flight, per partition.")]
MessageTtlOption = Annotated[str | None, typer.Option(metavar="1h", help="Older messages are not delivered.")]
StartOption = Annotated[
    str | None, typer.Option(metavar="earliest|latest|1h", help="Where it begins; 1h: so long ago.")
]
GuaranteeOption = Annotated[
    str | None, typer.Option(metavar="at-least-once|at-most-once", help="Default: at-least-once.")
]


def create(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Also its group id on Kafka's wire.")],
    topic: TopicOption = None,
    pattern: PatternOption = None,
    mode: Annotated[str | None, typer.Option(metavar="queue|stream", help="Default: queue.")] = None,
    push: PushOption = None,
    allow_private: Annotated[
        bool, typer.Option("--allow-private", help="Push to an address that is not public, if the broker allows it.")
    ] = False,
    filter_: FilterOption = None,
    retention: RetentionOption = None,
    ack_timeout: AckTimeoutOption = None,
    max_deliveries: MaxDeliveriesOption = None,
    backoff_min: BackoffMinOption = None,
    backoff_max: BackoffMaxOption = None,
    dead_letter_topic: DeadLetterTopicOption = None,
    per_key_order: Annotated[bool, typer.Option("--per-key-order", help="One message of a key at a time.")] = False,
    window: WindowOption = None,
    message_ttl: MessageTtlOption = None,
    start: StartOption = None,
    guarantee: GuaranteeOption = None,
    bootstrap: BootstrapOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a subscription. The same once more is no mistake.

    Examples:

        clarion subscription create invoices --topic orders --retention 14d
        clarion subscription create big --topic orders --filter 'value.order > 1'
    """
    if bool(topic) == (pattern is not None):
        raise UsageError("say which topics it reads: --topic, once or more, or --pattern")
    if allow_private and push is None:
        raise UsageError("--allow-private is about an address: say which, with --push")
    said: Mapping[str, Any] = {
        "name": name,
        "topics": topic or None,
        "pattern": pattern,
        "mode": mode,
        "push": None if push is None else {"url": push, **({"allow_private": True} if allow_private else {})},
        "filter": filter_,
        "retention": retention,
        "ack_timeout": ack_timeout,
        "max_deliveries": max_deliveries,
        "backoff_min": backoff_min,
        "backoff_max": backoff_max,
        "dead_letter_topic": dead_letter_topic,
        "per_key_order": per_key_order or None,
        "window": window,
        "message_ttl": message_ttl,
        "start": start,
        "guarantee": guarantee,
    }
    body = {field: value for field, value in said.items() if value is not None}
    _check({}, body)
    made = HttpLink(Link.of(context, bootstrap)).ask("POST", _ALL, body)
    report(made, as_json, f"subscription {clean(name)} reads {clean(pattern or ', '.join(topic or ()))}")
    if not as_json and made.get("push", {}) and made["push"].get("secret"):
        print(f"its messages are signed with {made['push']['secret']}")


def alter(
    context: typer.Context,
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="The subscription's name.", autocompletion=completion.groups)
    ],
    topic: TopicOption = None,
    pattern: PatternOption = None,
    push: PushOption = None,
    allow_private: Annotated[
        bool | None,
        typer.Option("--allow-private/--public-only", help="Whether to push to an address that is not public."),
    ] = None,
    filter_: FilterOption = None,
    retention: RetentionOption = None,
    ack_timeout: AckTimeoutOption = None,
    max_deliveries: MaxDeliveriesOption = None,
    backoff_min: BackoffMinOption = None,
    backoff_max: BackoffMaxOption = None,
    dead_letter_topic: DeadLetterTopicOption = None,
    per_key_order: Annotated[
        bool | None, typer.Option("--per-key-order/--any-order", help="One message of a key at a time.")
    ] = None,
    window: WindowOption = None,
    message_ttl: MessageTtlOption = None,
    start: StartOption = None,
    guarantee: GuaranteeOption = None,
    unset: Annotated[
        list[str] | None, typer.Option("--unset", metavar="RULE", help="Back to its default; repeatable.")
    ] = None,
    bootstrap: BootstrapOption = None,
    as_json: JsonOption = False,
) -> None:
    """Change a subscription's rules. What is not said stays as it is; its name and mode cannot be changed.

    Examples:

        clarion subscription alter invoices --retention 30d --max-deliveries 10
        clarion subscription alter invoices --unset retention
    """
    said: Mapping[str, Any] = {
        "topics": topic or None,
        "pattern": pattern,
        "filter": filter_,
        "retention": retention,
        "ack_timeout": ack_timeout,
        "max_deliveries": max_deliveries,
        "backoff_min": backoff_min,
        "backoff_max": backoff_max,
        "dead_letter_topic": dead_letter_topic,
        "per_key_order": per_key_order,
        "window": window,
        "message_ttl": message_ttl,
        "start": start,
        "guarantee": guarantee,
    }
    changes = {field: value for field, value in said.items() if value is not None} | _unset(unset or [])
    if topic and pattern is None:
        changes["pattern"] = None  # one in place of the other
    elif pattern is not None and not topic:
        changes["topics"] = []
    if not changes and push is None and allow_private is None:
        raise UsageError("nothing to change: say a rule, as --retention 14d, or --unset RULE")
    http = HttpLink(Link.of(context, bootstrap))
    before = http.ask("GET", subscription_path(name))["subscription"]
    if push is not None or allow_private is not None:
        changes["push"] = _endpoint(name, before["push"], push, allow_private)
    _check(before, changes)
    changed = http.ask("PATCH", subscription_path(name), changes)
    report(changed, as_json, f"altered {clean(name)}")


def _unset(rules: list[str]) -> dict[str, None]:
    known = sorted(FIELD_NAMES - _NEVER_CHANGED)
    for one in rules:
        if one.replace("-", "_") not in known:
            raise UsageError(f"--unset {one}: the rules are {', '.join(known)}")
    return dict.fromkeys(one.replace("-", "_") for one in rules)


def _endpoint(
    name: str, before: Mapping[str, Any] | None, url: str | None, allow_private: bool | None
) -> dict[str, Any]:
    """What is not said of an endpoint stays, its secret and headers too."""
    if before is None and url is None:
        raise UsageError(f"{name} is not pushed: say where to, with --push")
    said = {"url": url, "allow_private": allow_private}
    return {**(before or {}), **{field: value for field, value in said.items() if value is not None}}


def _check(before: Mapping[str, Any], changes: Mapping[str, Any]) -> None:
    """As the broker would: what it refuses are wrong words, and tell so by their status."""
    known = {field: value for field, value in before.items() if field in FIELD_NAMES}
    try:
        wanted = Subscription.from_json({**known, **changes})
        wanted.check_somebody_can_read()
        if wanted.filter is not None and "filter" in changes:
            from clarion.consumers.filters import compile_filter

            compile_filter(wanted.filter)
        if wanted.pattern is not None and "pattern" in changes:
            from clarion.groups.subscriptions import check_regex

            check_regex(wanted.pattern)
    except KafkaError as error:
        raise UsageError(error.message) from error


def report(found: object, as_json: bool, sentence: str) -> None:
    if as_json:
        show_json(found)
    else:
        print(sentence)
