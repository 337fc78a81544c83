"""The message classes, which are dataclasses made more cheaply."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clarion.wire.messages.groups import DeleteGroupsRequest, HeartbeatRequest, HeartbeatResponse, ListGroupsResponse


def test_messages_are_equal_by_content_and_class():
    request = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
    same = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
    assert request == same
    assert hash(request) == hash(same)
    assert request != replace(request, generation_id=2)
    assert DeleteGroupsRequest(groups_names=()) != ListGroupsResponse()
    assert request != "a request"


def test_a_message_shows_its_fields():
    assert repr(HeartbeatResponse(error_code=3)) == "HeartbeatResponse(throttle_time=0, error_code=3)"


def test_a_message_has_the_fields_that_are_declared_and_takes_them_by_name():
    with pytest.raises(TypeError):
        HeartbeatResponse(0, 3)
    with pytest.raises(TypeError, match="nonsense"):
        HeartbeatResponse(nonsense=3)
    with pytest.raises(AttributeError):
        HeartbeatResponse().nonsense = 3
