from collections.abc import Iterator

import pytest

from tests import etcd as etcd_server


@pytest.fixture(scope="session")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[etcd_server.EtcdProcess]:
    """One member for all tests, each of which uses a prefix of its own."""
    if not etcd_server.is_installed():
        pytest.skip(etcd_server.MISSING)
    (server,) = etcd_server.etcd_cluster(tmp_path_factory.mktemp("etcd"), 1)
    yield server
    server.kill()
