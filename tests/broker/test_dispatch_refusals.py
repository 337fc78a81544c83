"""An error that a handler lets through becomes a reply in whatever version the client has asked."""

import pytest

from clarion.broker.dispatch import _refusal
from clarion.model.errors import ErrorCode, KafkaError
from clarion.wire.apis import APIS, FETCH, PRODUCE
from clarion.wire.bridge import encode


@pytest.mark.parametrize(
    "api", [api for key, api in APIS.items() if key not in (PRODUCE, FETCH)], ids=lambda api: api.name
)
def test_a_refusal_can_be_written_in_every_version(api) -> None:
    refusal = _refusal(api, KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "still reading"))
    if refusal is not None:
        for version in range(api.min_version, api.max_version + 1):
            assert encode(refusal, api.key, version, "response")
