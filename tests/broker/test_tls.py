"""Listeners with TLS: certificates, client certificates, who is refused, and bytes that arrive unchanged."""

import asyncio
import contextlib
import ssl
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Producer

from clarion.broker.config import BrokerConfig, Durability, ListenerConfig, TlsConfig
from clarion.broker.limits import Limits
from clarion.broker.server import BrokerServer
from clarion.model.errors import ErrorCode
from clarion.net import tls
from clarion.wire.messages.metadata import MetadataRequest
from tests.broker.harness import Client, Node, running, until
from tests.broker.talk import batch, produce_frame, read_produced

T0 = ("t", 0)
QUICK = {"durability": Durability.PAGE_CACHE}


def openssl(folder: Path, *words: str) -> None:
    subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return signed_certificates(tmp_path_factory.mktemp("tls"))


def signed_certificates(folder: Path) -> Path:
    """An authority, and what it has signed for the broker and for one client; a stranger signed himself."""
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")
    openssl(folder, "req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=authority")
    openssl(folder, "req", "-x509", *key, "-keyout", "stranger.key", "-out", "stranger.pem", "-subj", "/CN=stranger")
    for name in ("broker", "client"):
        openssl(folder, "req", *key[:-2], "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        (folder / "names").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
        sign = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "names")
        openssl(folder, "x509", "-req", "-in", f"{name}.csr", "-out", f"{name}.pem", *sign)
    return folder


def secure(certificates: Path, *, client_ca: bool = False) -> ListenerConfig:
    ca = str(certificates / "ca.pem") if client_ca else None
    return ListenerConfig(
        port=0, tls=TlsConfig(str(certificates / "broker.pem"), str(certificates / "broker.key"), client_ca=ca)
    )


def trusting(certificates: Path, show: str | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(certificates / "ca.pem"))
    if show is not None:
        context.load_cert_chain(str(certificates / f"{show}.pem"), str(certificates / f"{show}.key"))
    return context


def plain_and(tls: ListenerConfig) -> dict:
    return {"listeners": (ListenerConfig(port=0), tls), **QUICK}


async def connect(node: Node, context: ssl.SSLContext) -> Client:
    return await Client.connect(*node.server.addresses[1], ssl=context, server_hostname="localhost")


async def ask_brokers(node: Node, context: ssl.SSLContext) -> None:
    client = await connect(node, context)
    await client.ask(MetadataRequest(topics=()), 9)


@pytest.mark.parametrize("mode", [0o644, 0o640])
async def test_a_key_that_everybody_may_read_is_warned_about(tmp_path, certificates, caplog, mode):
    (certificates / "broker.key").chmod(mode)
    async with running(tmp_path, **plain_and(secure(certificates))):
        warned = [one.getMessage() for one in caplog.records if "tls_key" in one.getMessage()]
    assert warned == (["tls_key_readable_by_everybody"] if mode == 0o644 else [])


async def test_a_client_that_trusts_the_authority_is_served(tmp_path, certificates):
    async with running(tmp_path, **plain_and(secure(certificates))) as node:
        await node.topic()
        client = await connect(node, trusting(certificates))
        assert (await client.produce({T0: batch(b"secret")}))[T0].error_code == 0
        assert (await client.fetch({T0: 0})).values() == [b"secret"]
        assert (await node.client.fetch({T0: 0})).values() == [b"secret"]
        told = (await client.ask(MetadataRequest(topics=()), 9)).brokers[0]
        assert told.port == node.server.addresses[1].port
        client.close()


async def test_large_answers_and_waiting_readers_work_through_tls(tmp_path, certificates):
    async with running(tmp_path, **plain_and(secure(certificates))) as node:
        await node.topic(partitions=2, max_message_bytes="4000000", segment_bytes="5000000")
        client = await connect(node, trusting(certificates))
        sent = [bytes([number]) * 3_000_000 for number in range(6)]
        for value in sent:
            await client.produce({T0: batch(value)})
        answer = await client.fetch({T0: 0}, max_bytes=50_000_000, partition_max_bytes=50_000_000)
        assert answer.values() == sent
        client.post_fetch({("t", 1): 0}, max_wait=20_000)
        await until(lambda: node.partition("t", 1).watchers)
        await node.client.produce({("t", 1): batch(b"news")})
        assert (await client.fetched()).values("t", 1) == [b"news"]
        client.close()


async def test_many_pipelined_requests_keep_their_order_through_tls(tmp_path, certificates):
    from tests.broker.talk import produce_frame, read_produced

    async with running(tmp_path, **plain_and(secure(certificates))) as node:
        await node.topic()
        client = await connect(node, trusting(certificates))
        for number in range(500):
            client.post(produce_frame({T0: batch(b"x" * 500)}, correlation=number))
        for number in range(500):
            assert read_produced(await client.next_frame(), 9)[T0].base_offset == number
        client.close()


async def test_a_client_must_show_a_certificate_where_one_is_wanted(tmp_path, certificates):
    async with running(tmp_path, **plain_and(secure(certificates, client_ca=True))) as node:
        client = await connect(node, trusting(certificates, show="client"))
        assert (await client.ask(MetadataRequest(topics=()), 9)).brokers
        client.close()
        for show in (None, "stranger"):
            with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
                await ask_brokers(node, trusting(certificates, show=show))
        assert (await node.ask(MetadataRequest(topics=()), 9)).brokers


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1")
async def test_a_client_without_tls_and_one_that_does_not_trust_us_get_nowhere(tmp_path, certificates):
    async with running(tmp_path, **plain_and(secure(certificates))) as node:
        plain = await Client.connect(*node.server.addresses[1])
        plain.post(batch(b"x"))
        assert await plain.is_refused()
        plain.close()
        with pytest.raises(ssl.SSLCertVerificationError):
            await connect(node, ssl.create_default_context())
        old = trusting(certificates)
        old.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
        old.maximum_version = ssl.TLSVersion.TLSv1_1
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await connect(node, old)
        client = await connect(node, trusting(certificates))
        assert (await client.ask(MetadataRequest(topics=()), 9)).brokers
        client.close()


async def test_a_silent_crowd_keeps_nobody_out(tmp_path, certificates):
    """They are counted from the moment they connect, and the oldest gives way; also to clients without TLS."""
    async with running(tmp_path, **plain_and(secure(certificates)), limits=Limits(connections_max=60)) as node:
        silent = [await asyncio.open_connection(*node.server.addresses[1]) for _ in range(300)]
        handshakes = node.server.net.handshakes
        await until(lambda: 0 < len(handshakes) <= 16)
        clients = [await connect(node, trusting(certificates)) for _ in range(5)]
        clients += [await Client.connect(*node.server.addresses[0]) for _ in range(5)]
        for client in clients:
            assert (await client.ask(MetadataRequest(topics=()), 9)).brokers
        assert len(node.server.net.connections) + len(handshakes) <= 60
        assert node.server.net.refused_total == 0
        for client in clients:
            client.close()
        for _, writer in silent:
            writer.close()
        await until(lambda: len(handshakes) == 0)


async def test_connected_clients_do_not_give_way_to_those_who_only_connect(tmp_path, certificates):
    async with running(tmp_path, **plain_and(secure(certificates)), limits=Limits(connections_max=10)) as node:
        clients = [await connect(node, trusting(certificates)) for _ in range(9)]
        silent = [await asyncio.open_connection(*node.server.addresses[1]) for _ in range(40)]
        for client in clients:
            assert (await client.ask(MetadataRequest(topics=()), 9)).brokers
            client.close()
        for _, writer in silent:
            writer.close()


async def test_whoever_does_not_shake_hands_in_time_is_closed(tmp_path, certificates, monkeypatch):
    monkeypatch.setattr(tls, "HANDSHAKE_SECONDS", 0.1)
    async with running(tmp_path, **plain_and(secure(certificates))) as node:
        reader, writer = await asyncio.open_connection(*node.server.addresses[1])
        with contextlib.suppress(ConnectionError):
            assert await asyncio.wait_for(reader.read(), 60) == b""
        await until(lambda: len(node.server.net.handshakes) == 0)
        assert node.server.net.handshakes_failed_total == 1
        writer.close()


async def test_a_stop_does_not_wait_for_handshakes(tmp_path, certificates):
    async with running(tmp_path, **plain_and(secure(certificates))) as node:
        silent = [await asyncio.open_connection(*node.server.addresses[1]) for _ in range(5)]
        await until(lambda: len(node.server.net.handshakes) == 5)
        await asyncio.wait_for(node.server.net.stop(0), 60)
        assert len(node.server.net.handshakes) == 0
        for _, writer in silent:
            writer.close()


@pytest.mark.parametrize(
    "cipher", ["AES128-SHA", "AES256-GCM-SHA384", "ECDHE-ECDSA-AES128-SHA256", "DHE-RSA-AES128-GCM-SHA256"]
)
async def test_tls_1_2_without_forward_secrecy_or_authenticated_encryption_is_refused(tmp_path, certificates, cipher):
    async with running(tmp_path, **plain_and(secure(certificates))) as node:
        context = trusting(certificates)
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        context.set_ciphers(f"{cipher}:@SECLEVEL=0")
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await connect(node, context)
        context.set_ciphers("ECDHE-ECDSA-AES128-GCM-SHA256")
        client = await connect(node, context)
        assert (await client.ask(MetadataRequest(topics=()), 9)).brokers
        client.close()


async def test_librdkafka_writes_and_reads_with_a_certificate(tmp_path, certificates):
    async with running(tmp_path, **plain_and(secure(certificates, client_ca=True)), offsets_partitions=1) as node:
        await node.topic()
        where = {
            "bootstrap.servers": f"localhost:{node.server.addresses[1].port}",
            "broker.address.family": "v4",
            "security.protocol": "ssl",
            "ssl.ca.location": str(certificates / "ca.pem"),
            "ssl.certificate.location": str(certificates / "client.pem"),
            "ssl.key.location": str(certificates / "client.key"),
        }
        sent = [b"%d" % number * 1000 for number in range(200)]
        assert await asyncio.to_thread(_round_trip, where, sent) == sent


def _round_trip(where: dict, sent: list[bytes]) -> list[bytes | None]:
    producer = Producer({**where, "enable.idempotence": True})
    for value in sent:
        producer.produce("t", value)
    assert producer.flush(20) == 0
    consumer = Consumer({**where, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe(["t"])
    got: list[bytes | None] = []
    while len(got) < len(sent):
        message = consumer.poll(20)
        assert message is not None, f"nothing came behind {len(got)} messages"
        if message.error() is None:
            got.append(message.value())
        else:
            assert message.error().code() == KafkaError._PARTITION_EOF
    consumer.close()
    return got


class HalfClosing:
    """A TLS client that ends its sending half (close_notify) behind its last request, and goes on reading."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, context: ssl.SSLContext) -> None:
        self._reader, self._writer = reader, writer
        self._arrived, self._leaving = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._arrived, self._leaving, server_hostname="localhost")

    async def shake_hands(self) -> None:
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                self._writer.write(self._leaving.read())
                self._arrived.write(await self._reader.read(1 << 16))
            else:
                self._writer.write(self._leaving.read())
                return

    async def send_and_end(self, frame: bytes) -> bytes:
        """Returns what comes until the broker ends the connection."""
        self._tls.write(frame)
        with contextlib.suppress(ssl.SSLWantReadError):
            self._tls.unwrap()
        self._writer.write(self._leaving.read())
        async with asyncio.timeout(60):
            self._arrived.write(await self._reader.read(-1))
        self._writer.close()
        try:
            return self._tls.read(1 << 16)
        except ssl.SSLZeroReturnError:
            return b""


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_who_says_goodbye_behind_a_request_gets_the_replies_that_are_there(tmp_path, certificates, version):
    """And what he asked for is done. Replies that take longer are lost: with TLS both halves end together."""
    async with running(tmp_path, **plain_and(secure(certificates))) as node:
        await node.topic()
        others = len(node.server.net.connections)
        context = trusting(certificates)
        context.maximum_version = version
        client = HalfClosing(*await asyncio.open_connection(*node.server.addresses[1]), context)
        await client.shake_hands()
        reply = await client.send_and_end(produce_frame({T0: batch(b"last words")}))
        assert read_produced(reply[4:], 9)[T0].base_offset == 0
        assert (await node.client.fetch({T0: 0})).values() == [b"last words"]
        await until(lambda: len(node.server.net.connections) == others)


# Brokers among themselves


@contextlib.asynccontextmanager
async def two_brokers(folder: Path, listener: ListenerConfig, *authorities: Path) -> AsyncIterator[list[BrokerServer]]:
    async with contextlib.AsyncExitStack() as stack:
        servers = []
        for number, authority in enumerate(authorities, start=1):
            told = {"node_id": number, "cluster": f"file:{folder / 'store'}", "cluster_ca": str(authority)}
            server = BrokerServer(BrokerConfig(str(folder / str(number)), listeners=(listener,), **told, **QUICK))
            await server.start()
            stack.push_async_callback(server.stop, 0)
            servers.append(server)
        await until(lambda: all(len(one.broker.image.brokers) == 2 for one in servers))
        yield servers


async def acknowledged(servers: list[BrokerServer], context: ssl.SSLContext, timeout_ms: int) -> int:
    """The error of a write that both brokers must have."""
    await servers[0].broker.create_topic("t", 1, {}, 2, [(1, 2)])
    client = await Client.connect(*servers[0].addresses[0], ssl=context, server_hostname="localhost")
    try:
        return (await client.produce({T0: batch(b"for two")}, timeout=timeout_ms))[T0].error_code
    finally:
        client.close()


@pytest.mark.parametrize("client_ca", [True, False])
async def test_brokers_whose_first_listener_speaks_tls_replicate_through_it(tmp_path, certificates, client_ca):
    authority = certificates / "ca.pem"
    async with two_brokers(tmp_path, secure(certificates, client_ca=client_ca), authority, authority) as servers:
        assert await acknowledged(servers, trusting(certificates, "client"), 10_000) == 0


async def test_a_broker_takes_nothing_from_one_whose_certificate_another_authority_has_signed(tmp_path, certificates):
    authorities = certificates / "ca.pem", certificates / "stranger.pem"
    async with two_brokers(tmp_path, secure(certificates), *authorities) as servers:
        assert await acknowledged(servers, trusting(certificates), 500) == ErrorCode.REQUEST_TIMED_OUT


async def test_an_authority_that_is_not_there_is_named_at_the_start(tmp_path, certificates):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        async with two_brokers(tmp_path, secure(certificates), certificates / "nowhere.pem"):
            pass
