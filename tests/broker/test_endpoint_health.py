"""What a broker tells of endpoints that it pushes to: nothing while there are none, and then how they are."""

from __future__ import annotations

from clarion.broker.endpoint_health import EndpointHealths


def test_without_push_subscriptions_there_is_nothing_to_tell() -> None:
    healths = EndpointHealths()
    assert healths.find("billing") is None
    assert list(healths.samples()) == []


def test_an_endpoint_that_fails_is_seen_as_resting_with_the_reason() -> None:
    health = EndpointHealths().of("billing")
    assert health.to_json()["state"] == "well"
    health.last_failure, health.last_failure_ms = "HTTP 500", 1_700_000_000_000
    assert health.to_json()["state"] == "failing"
    health.circuit = "open"
    assert health.to_json() | {"window": 0} == {
        "state": "resting",
        "circuit": "open",
        "window": 0,
        "in_flight": 0,
        "delivered": 0,
        "failed": 0,
        "dropped": 0,
        "last_success": None,
        "last_failure": "2023-11-14T22:13:20.000Z",
        "last_failure_reason": "HTTP 500",
        "stopped_because": None,
    }
    health.stopped = "gone"
    assert health.to_json()["state"] == "stopped"


def test_numbers_are_by_subscription_and_outcome() -> None:
    healths = EndpointHealths()
    healths.of("billing").delivered_total = 7
    healths.of("billing").circuit = "half-open"
    samples = {(name, labels): value for name, labels, value in healths.samples()}
    assert samples["clarion_push_messages_total", ("billing", "delivered")] == 7
    assert samples["clarion_push_messages_total", ("billing", "failed")] == 0
    assert samples["clarion_push_circuit_open", ("billing",)] == 0.5
    healths.forget("billing")
    assert list(healths.samples()) == []
