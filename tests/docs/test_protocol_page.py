"""The protocol page says what the code does."""

from __future__ import annotations

import re

import pytest
from tools.protocol_table import PAGE, _doc, protocol_page

from clarion.wire.apis import APIS, Api


def test_the_protocol_page_is_what_the_code_says() -> None:
    assert PAGE.read_text() == protocol_page(), "run `make docs`"


@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.name)
def test_every_module_opens_with_the_versions_it_speaks(api: Api) -> None:
    opening = re.match(r"(\w+) v(\d+)(?:-(\d+))?: ", _doc(api))
    assert opening, f"{api.name} does not open with its versions"
    name, low, high = opening.groups()
    assert (name, int(low), int(high or low)) == (api.name, api.min_version, api.max_version)
