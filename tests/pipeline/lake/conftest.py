"""One broker for the whole folder."""

import pytest


@pytest.fixture(scope="package")
def broker(tmp_path_factory):
    from tests.servers import ClarionProcess

    with ClarionProcess(tmp_path_factory.mktemp("broker") / "data", durability="page-cache") as process:
        yield process
