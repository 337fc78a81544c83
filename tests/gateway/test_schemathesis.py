"""schemathesis asks everything that the OpenAPI description says may be asked, and the answers are as it says.

Bounded and seeded: the same requests each time. Streams have no end, and are tried in test_streams.
"""

import json
import os
from collections.abc import Iterator
from typing import Any
from zlib import crc32

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from clarion.broker.subscription_actions import SubscriptionActions
from clarion.gateway.app import build_app, description
from clarion.gateway.brokers import Brokers
from clarion.gateway.loop_share import LoopShare
from clarion.testing import embedded

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
EXAMPLES = int(os.environ.get("CLARION_SCHEMATHESIS_EXAMPLES", "4"))


@schemathesis.serializer("application/x-ndjson")
def lines(context: Any, value: Any) -> bytes:
    return value if isinstance(value, bytes) else json.dumps(value).encode()


NOBODY: Any = None  # the description is the same for every broker


def described() -> Any:
    share = LoopShare(lambda: 1.0, NOBODY)
    return description(build_app(NOBODY, Brokers(NOBODY), SubscriptionActions(NOBODY), share))


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with embedded(metrics_port=0, clarion_http_share=1.0, topics={"orders": 2}) as broker:
        broker.produce("orders", b'{"total": 1}', key=b"42")
        yield broker.http_url


schema = schemathesis.openapi.from_dict(described()).exclude(path_regex="/events$")


@schema.parametrize()
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_every_answer_is_as_described(case, url):
    if isinstance(case.query, dict):
        case.query.pop("wait_ms", None)  # nobody comes with news
    if isinstance(case.body, dict):
        case.body.pop("wait_ms", None)
    if (
        isinstance(case.path_parameters, dict)
        and "topic" in case.path_parameters
        and crc32(repr(case.query).encode()) % 2
    ):
        case.path_parameters["topic"] = "orders"
    case.call_and_validate(base_url=url, checks=CHECKS, timeout=60)
