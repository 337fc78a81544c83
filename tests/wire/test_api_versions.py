"""What a client is told first."""

from __future__ import annotations

import pytest

from clarion.model.errors import ErrorCode
from clarion.wire import bridge
from clarion.wire.api_versions import ClusterLevel, encode_refusal, encode_reply, names_its_software
from clarion.wire.apis import ADVERTISED, API_VERSIONS
from clarion.wire.messages.metadata import ApiVersionsRequest, ApiVersionsResponse
from tests.wire import oracle


def read(body: bytes, version: int) -> ApiVersionsResponse:
    return bridge.decode(ApiVersionsResponse, API_VERSIONS, version, "response", body)


@pytest.mark.parametrize("version", range(5))
def test_every_version_tells_every_api(version):
    body = encode_reply(version)
    assert [(a.api_key, a.min_version, a.max_version) for a in read(body, version).api_keys] == list(ADVERTISED)
    assert read(body, version).error_code == ErrorCode.NONE
    oracle.read(oracle.schema("api_versions", version, "response").ApiVersionsResponse, body)


def test_the_new_group_protocol_and_share_groups_are_told_as_features_from_version_3_on():
    names = ["group.version", "share.version"]
    for version in (3, 4):
        reply = read(encode_reply(version), version)
        assert [(f.name, f.min_version, f.max_version) for f in reply.supported_features] == [(n, 1, 1) for n in names]
        assert [(f.name, f.max_version_level) for f in reply.finalized_features] == [(name, 1) for name in names]
        assert reply.finalized_features_epoch >= 0


def test_brokers_of_a_cluster_tell_the_same_and_the_level_of_its_own_features():
    reply = read(encode_reply(4, ClusterLevel("cluster.version", 1, 1)), 4)
    assert [one.name for one in reply.supported_features] == ["group.version", "share.version", "cluster.version"]
    assert {one.api_key for one in reply.api_keys} == {key for key, _, _ in ADVERTISED}


@pytest.mark.parametrize("version", [-1, 5, 99, 32767])
def test_trap_4_an_unknown_version_gets_a_version_0_reply_with_error_35_and_the_ranges(version):
    reply = read(encode_reply(version), 0)
    assert reply.error_code == 35
    assert len(reply.api_keys) == len(ADVERTISED)


def test_a_refusal_is_written_in_the_version_asked_for():
    assert read(encode_refusal(3, ErrorCode.INVALID_REQUEST), 3).error_code == 42


@pytest.mark.parametrize("good", ["a", "librdkafka", "apache-kafka-java", "1.2.3", "v2.15.0-RC1"])
@pytest.mark.parametrize("bad", ["", "-a", "a-", ".1", "1.", "a b", "a_b", "café", "a\n"])
def test_trap_6_software_names_follow_kafkas_pattern(good, bad):
    assert names_its_software(ApiVersionsRequest(client_software_name=good, client_software_version=good), 3)
    assert not names_its_software(ApiVersionsRequest(client_software_name=good, client_software_version=bad), 3)
    assert not names_its_software(ApiVersionsRequest(client_software_name=bad, client_software_version=good), 4)
    assert names_its_software(ApiVersionsRequest(), 2)
