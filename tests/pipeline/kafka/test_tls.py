"""TLS between an executor and a broker, with certificates made for the occasion."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from clarion.model.ids import TopicPartition
from clarion.pipeline.kafka.client import Client
from clarion.pipeline.kafka.encode import messages
from clarion.pipeline.kafka.errors import ConnectionLostError, TlsError
from clarion.pipeline.kafka.offsets import LATEST, list_offsets
from clarion.pipeline.kafka.producer import IdempotentProducer, ProducerSettings
from clarion.pipeline.kafka.range_progress import OffsetRange
from clarion.pipeline.kafka.range_reader import FetchSettings, read_ranges
from clarion.pipeline.kafka.settings import ClientSettings, TlsSettings
from tests.servers import ClarionProcess

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl to make certificates")


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority, and certificates for a broker on 127.0.0.1 and for a client."""
    folder = tmp_path_factory.mktemp("papers")
    openssl(folder, "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=authority -keyout ca.key -out ca.pem")
    for name in ("broker", "client"):
        (folder / f"{name}.ext").write_text("subjectAltName=IP:127.0.0.1\n")
        openssl(folder, f"req -newkey rsa:2048 -nodes -subj /CN={name} -keyout {name}.key -out {name}.csr")
        signed = "-CA ca.pem -CAkey ca.key -CAcreateserial -days 2"
        openssl(folder, f"x509 -req -in {name}.csr {signed} -extfile {name}.ext -out {name}.pem")
    return folder


def openssl(folder: Path, arguments: str) -> None:
    subprocess.run(["openssl", *arguments.split()], cwd=folder, check=True, capture_output=True)


@pytest.fixture(scope="module")
def broker(papers: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClarionProcess]:
    """It speaks TLS only, and only with clients whose certificate it knows."""
    args = ["--tls-certificate", str(papers / "broker.pem"), "--tls-key", str(papers / "broker.key")]
    args += ["--tls-client-ca", str(papers / "ca.pem")]
    with ClarionProcess(tmp_path_factory.mktemp("tls") / "data", args=args) as server:
        yield server


def tls(papers: Path) -> TlsSettings:
    return TlsSettings(str(papers / "ca.pem"), str(papers / "client.pem"), str(papers / "client.key"))


def test_messages_travel_through_tls(broker, papers):
    client = Client(ClientSettings((broker.bootstrap,), tls=tls(papers)))
    topic = client.topics(["t"], may_create=True)["t"]
    place = TopicPartition("t", 0)
    producer = IdempotentProducer(client, ProducerSettings())
    values = pa.array([b"x" * 1000] * 5000)
    producer.write(messages(pa.nulls(5000, pa.binary()), values, np.arange(5000)), [(place, 0)], np.arange(5000))
    producer.flush()
    end = list_offsets(client, {place: LATEST})[place]
    read = [
        rows.count for rows, _ in read_ranges(client, [OffsetRange("t", topic.topic_id, 0, 0, end)], FetchSettings())
    ]
    assert (end, sum(read)) == (5000, 5000)
    client.close()


def test_a_broker_that_is_not_trusted_is_refused_at_once(broker, papers):
    trusts_others = TlsSettings(None, str(papers / "client.pem"), str(papers / "client.key"))
    with pytest.raises(TlsError, match=broker.bootstrap):
        Client(ClientSettings((broker.bootstrap,), tls=trusts_others)).topics(["t"])


def test_a_stranger_hears_nothing(broker, papers):
    without_certificate = TlsSettings(str(papers / "ca.pem"))
    with pytest.raises((ConnectionLostError, TlsError), match=broker.bootstrap):
        Client(ClientSettings((broker.bootstrap,), tls=without_certificate, api_timeout_ms=300)).topics(["t"])


def test_whoever_speaks_in_the_clear_hears_nothing(broker):
    with pytest.raises(ConnectionLostError):
        Client(ClientSettings((broker.bootstrap,), api_timeout_ms=300, request_timeout_ms=2000)).topics(["t"])


def test_a_broker_under_another_name_is_not_trusted_unless_told(broker, papers):
    elsewhere = broker.bootstrap.replace("127.0.0.1", "localhost")
    strict = Client(ClientSettings((elsewhere,), tls=tls(papers), api_timeout_ms=300))
    with pytest.raises(TlsError, match="localhost"):
        strict.topics([])
    lenient = TlsSettings(
        *(str(papers / name) for name in ("ca.pem", "client.pem", "client.key")), checks_host_name=False
    )
    Client(ClientSettings((elsewhere,), tls=lenient)).topics([])
