"""Writes docs/protocol.md from the table of APIs and the modules that serve them: `python -m tools.protocol_table`."""

from __future__ import annotations

import ast
from pathlib import Path

from clarion.wire.apis import APIS, NEVER_FLEXIBLE, Api

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/protocol.md"

HEAD = """# Protocol support

Generated from the code by `make docs`; a test compares the two. Only what is listed here is advertised, and every
version of it is tested against Apache Kafka's schemas.

| key | API | versions | flexible from | what it does |
|---|---|---|---|---|
"""

TAIL = """
Not advertised, and refused clearly: transactions (a transactional id gets TRANSACTIONAL_ID_AUTHORIZATION_FAILED at
once), SASL, ACLs, altering quotas, delegation tokens, telemetry, share groups, unregistering the only broker. Kafka
Streams' own rebalance protocol (KIP-1071, keys 88 and 89) is excluded for now: streams with the classic protocol work.

Features: `group.version` 1 (KIP-848 groups). Topic ids, fetch sessions, idempotent producers, all four compressions,
message format v2 only.

## API by API
"""


def protocol_page() -> str:
    rows = [_row(api) for api in APIS.values()]
    notes = [f"### {api.key} {api.name}\n\n{_doc(api)}\n" for api in APIS.values()]
    return HEAD + "\n".join(rows) + "\n" + TAIL + "\n" + "\n".join(notes)


def _row(api: Api) -> str:
    flexible = "never" if api.first_flexible == NEVER_FLEXIBLE else str(api.first_flexible)
    versions = f"{api.min_version}-{api.max_version}"
    if api.advertised_min != api.min_version:
        versions += f" (advertised from {api.advertised_min})"
    what = _doc(api).split("\n\n")[0].split(": ", 1)[1].replace("\n", " ")
    return f"| {api.key} | {api.name} | {versions} | {flexible} | {what} |"


def _doc(api: Api) -> str:
    path = ROOT / f"src/clarion/broker/apis/k{api.key:02d}_{api.snake_name}.py"
    return ast.get_docstring(ast.parse(path.read_text())) or ""


if __name__ == "__main__":
    PAGE.write_text(protocol_page())
