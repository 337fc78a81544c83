"""How large a message may be."""

import pytest

from tests.clients.adapters.model import EARLIEST, MESSAGE_TOO_LARGE, Client, Outgoing, Refused

MEGABYTE = 1_000_000
GENEROUS_CLIENT = 3_000_000  # what the client itself would let pass, so that the broker is the one who refuses


def test_a_message_of_a_megabyte_passes(client: Client, topic: str) -> None:
    value = bytes(range(97, 123)) * (MEGABYTE // 26)
    client.produce(topic, [Outgoing(value)], max_bytes=GENEROUS_CLIENT)
    assert client.read(topic, 0, EARLIEST, 1)[0].value == value


def test_a_larger_message_is_refused_and_the_topic_goes_on(client: Client, topic: str) -> None:
    with pytest.raises(Refused) as caught:
        client.produce(topic, [Outgoing(b"x" * 1_100_000)], max_bytes=GENEROUS_CLIENT)
    assert caught.value.code == MESSAGE_TOO_LARGE
    client.produce(topic, [Outgoing(b"small")])
    assert [m.value for m in client.read(topic, 0, EARLIEST, 1)] == [b"small"]


@pytest.mark.needs("admin")
def test_a_topic_may_allow_less_or_more(client: Client, unique: str) -> None:
    client.create_topic(f"{unique}-less", config={"max.message.bytes": "1000"})
    with pytest.raises(Refused) as caught:
        client.produce(f"{unique}-less", [Outgoing(b"x" * 2000)])
    assert caught.value.code == MESSAGE_TOO_LARGE
    client.create_topic(f"{unique}-more", config={"max.message.bytes": "3000000"})
    client.produce(f"{unique}-more", [Outgoing(b"x" * 2_000_000)], max_bytes=GENEROUS_CLIENT)
    assert len(client.read(f"{unique}-more", 0, EARLIEST, 1)[0].value) == 2_000_000
