"""The audit events of the gateway while brokers do not take them: bounded, counted, and in order."""

import json
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from millstream.formats.model.errors import ErrorCode
from millstream.gateway.http import audit
from millstream.gateway.http.audit import ADMINISTRATION, AUTHENTICATION, AuditTrail, NotAcceptedError
from millstream.node.security.core.audit_events import LONGEST_REPORT, InvalidEventError, reported_event
from millstream.raw_client import RefusedError, UnreachableError
from tests.waiting import until


class Cluster:
    """A cluster that takes events, or fails with an error."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.takes = 1000
        self.events: list[dict[str, Any]] = []
        self.was_asked = threading.Event()

    def report(self, documents: Sequence[str], timeout_s: float) -> int:
        self.was_asked.set()
        if self.error is not None:
            raise self.error
        taken = documents[: self.takes]
        self.events += [reported_event(each) for each in taken]
        return len(taken)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    for name in ("_RETRY_SECONDS", "_LONGEST_RETRY_SECONDS", "_REFUSED_RETRY_SECONDS", "_GATHER_SECONDS"):
        monkeypatch.setattr(audit, name, 0.001)
    return Cluster()


def test_a_flood_of_failures_does_not_push_out_administration(cluster: Cluster) -> None:
    trail = AuditTrail(cluster.report, queue_events=8)
    cluster.error = UnreachableError("no broker")
    trail.start()
    for _ in range(50):
        trail.record(AUTHENTICATION, "failure", "eve", "10.0.0.9", reason="wrong")
    for number in range(3):
        trail.record(ADMINISTRATION, "success", f"ann{number}", "10.0.0.1", api="POST /topics")
    assert trail.dropped == 50 - 6 + 1 and trail.reported == 0
    cluster.error = None
    until(lambda: trail.reported == 8)
    assert [event["principal"] for event in cluster.events] == ["User:eve"] * 6 + ["User:ann0", "User:ann1"]
    assert "dropped_before" in cluster.events[6]  # after 44 failures
    trail.record(ADMINISTRATION, "success", "late", "10.0.0.1")
    trail.close()
    assert cluster.events[-1]["dropped_before"] == 1 and trail.reported == 9
    assert sum(event.get("dropped_before", 0) for event in cluster.events) == trail.dropped == 45


def test_a_cluster_that_takes_no_events_is_asked_again_later(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    now = [0.0]
    trail = AuditTrail(cluster.report, clock=lambda: now[0])
    cluster.error = NotAcceptedError("User:gateway is not in millstream.audit.gateways")
    trail.start()
    trail.record(ADMINISTRATION, "success", "ann", "::1")
    until(lambda: trail.log_only == 1)
    cluster.error = None
    trail.record(ADMINISTRATION, "success", "ben", "::1")
    assert trail.log_only == 2 and "not in millstream.audit.gateways" in caplog.text
    now[0] += 61
    trail.record(ADMINISTRATION, "success", "cleo", "::1")
    until(lambda: trail.reported == 1)
    trail.close()
    assert [event["principal"] for event in cluster.events] == ["User:cleo"] and trail.dropped == 0


def test_what_a_broker_did_not_take_is_sent_again(cluster: Cluster) -> None:
    cluster.takes = 2
    trail = AuditTrail(cluster.report)
    for number in range(5):
        trail.record(ADMINISTRATION, "success", f"u{number}", "::1")
    trail.start()
    until(lambda: trail.reported == 5)
    trail.close()
    assert [event["principal"] for event in cluster.events] == [f"User:u{number}" for number in range(5)]


@pytest.mark.parametrize("code", [ErrorCode.INVALID_REQUEST, ErrorCode.SASL_AUTHENTICATION_FAILED])
def test_an_invalid_batch_is_dropped_and_others_wait(cluster: Cluster, code: ErrorCode) -> None:
    """One that is not valid is dropped, so that it does not stop the others; others wait."""
    cluster.error = RefusedError("no", code)
    trail = AuditTrail(cluster.report)
    trail.record(ADMINISTRATION, "success", "ann", "::1")
    trail.start()
    cluster.was_asked.wait(60)
    until(lambda: trail.dropped == (code is ErrorCode.INVALID_REQUEST))
    cluster.error = None
    trail.record(ADMINISTRATION, "success", "ben", "::1")
    wanted = ["User:ben"] if code is ErrorCode.INVALID_REQUEST else ["User:ann", "User:ben"]
    until(lambda: [event["principal"] for event in cluster.events] == wanted)
    trail.close()


def test_repetitions_are_counted(cluster: Cluster) -> None:
    now = [0.0]
    trail = AuditTrail(cluster.report, clock=lambda: now[0])
    for _ in range(100):
        trail.record_rarely(AUTHENTICATION, "denied", "", "10.0.0.1", reason="too many")
    now[0] += 60
    trail.record_rarely(AUTHENTICATION, "denied", "", "10.0.0.1", reason="too many")
    trail.record_rarely(AUTHENTICATION, "denied", "", "10.0.0.2", reason="too many")
    for number in range(30_000):
        trail.record_rarely(AUTHENTICATION, "denied", "", f"address-{number}", reason="too many")
    assert len(trail._seen) <= 10_000
    trail.start()
    trail.close()
    first, again, other = cluster.events[:3]
    assert "repeated" not in first and again["repeated"] == 99 and other["address"] == "10.0.0.2"


@pytest.mark.parametrize("user", ["x" * 10_000, "\ud800", 'a"\n\x00', "é" * 10_000])
def test_whatever_callers_send_the_event_is_valid(cluster: Cluster, user: str) -> None:
    trail = AuditTrail(cluster.report)
    trail.record(ADMINISTRATION, "failure", user, user, request=[user] * 100, resource=user, api=user, error=404)
    trail.start()
    trail.close()
    assert len(cluster.events) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "data_access"}, {"result": "x"}, {"principal": "Group:x"}, {"address": 1}, {"time_ms": -1},
        {"time_ms": True}, {"version": 1}, {"node": 1}, {"listener": "x"}, {"reason": "\ud800"}, {"reason": "x" * 501},
        {"request": "x"}, {"request": [1]}, {"request": ["x"] * 101}, {"errors": []}, {"reason": "x" * LONGEST_REPORT},
    ],
)  # fmt: skip
def test_a_broker_checks_every_field(change: dict[str, Any]) -> None:
    event = {"time_ms": 1, "kind": ADMINISTRATION, "result": "success", "principal": "User:x", "address": "::1"}
    assert reported_event(json.dumps(event)) == event
    with pytest.raises(InvalidEventError):
        reported_event(json.dumps(event | change))
    for name in event:
        with pytest.raises(InvalidEventError, match=name):
            reported_event(json.dumps({key: value for key, value in event.items() if key != name}))
