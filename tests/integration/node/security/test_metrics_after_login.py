"""Metrics on a listener with SASL: for clients that have logged in on the connection, and may describe the cluster."""

from __future__ import annotations

from typing import Any, cast

import pytest

from millstream.admin.broker_metrics import MetricsError, read_metrics
from millstream.formats.model.access_control import Principal
from millstream.node.metrics.endpoints import NodeEndpoints
from millstream.node.server.authorization import NO_AUTHORIZER
from millstream.node.server.service import Peer
from millstream.raw_client import Cluster
from millstream.testing import EmbeddedBroker
from tests.sasl import PASSWORD, Issuer, handshake, plain, sasl_settings
from tests.wire import Wire

_GET = b"GET /metrics?collect[]=process HTTP/1.1\r\n\r\n"
_CLUSTER, _DESCRIBE = 4, 8


def asked(wire: Wire) -> bytes:
    wire.send_raw(_GET)
    found = b""
    while piece := wire.socket.recv(65_536):
        found += piece
    return found


def client(user: str, password: str) -> dict[str, str]:
    login = {"sasl.mechanism": "PLAIN", "sasl.username": user, "sasl.password": password}
    return {"security.protocol": "SASL_PLAINTEXT", **login}


def test_metrics_need_a_login_that_is_complete(broker: EmbeddedBroker) -> None:
    with Wire(broker.bootstrap_servers) as stranger:
        assert asked(stranger).startswith(b"HTTP/1.1 403 ")
    with Wire(broker.bootstrap_servers) as halfway:
        handshake(halfway, "PLAIN")
        assert asked(halfway).startswith(b"HTTP/1.1 403 ")
    with Wire(broker.bootstrap_servers) as known:
        assert plain(known).error_code == 0
        response = asked(known)
        assert response.startswith(b"HTTP/1.1 200 ") and b"process_resident_memory_bytes" in response


def test_with_acls_the_user_must_be_allowed_to_describe_the_cluster(issuer: Issuer) -> None:
    settings = sasl_settings(issuer) | {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:admin",
    }
    with EmbeddedBroker(settings) as broker:
        host, _, port = broker.bootstrap_servers.rpartition(":")
        admin = Cluster(broker.bootstrap_servers, client("admin", "admin-secret-1"))
        alice = Cluster(broker.bootstrap_servers, client("alice", PASSWORD))
        with admin, alice:
            assert read_metrics(admin, 1, host, int(port), ("process",))
            with pytest.raises(MetricsError, match="403"):
                read_metrics(alice, 1, host, int(port), ("process",))
            row: dict[str, Any] = {"resource_type": _CLUSTER, "resource_name": "kafka-cluster", "host": "*"}
            row |= {"resource_pattern_type": 3, "principal": "User:alice", "operation": _DESCRIBE, "permission_type": 3}
            assert [each.error_code for each in admin.call("create_acls", creations=[row]).results] == [0]
            assert read_metrics(alice, 1, host, int(port), ("process",))
            assert alice.brokers(), "the client goes on with other connections"


class Session:
    """The authentication of a connection whose session is over, or not."""

    is_authenticated = True

    def __init__(self, *, is_current: bool) -> None:
        self.is_current = is_current


def test_a_session_that_is_over_reads_nothing() -> None:
    endpoints = NodeEndpoints.__new__(NodeEndpoints)
    peer = Peer("h", 1, "L", principal=Principal("User", "alice"))
    endpoints.authorizer = None
    assert not endpoints.may_observe(peer), "it is not known yet what the user may do"
    endpoints.authorizer = NO_AUTHORIZER
    assert endpoints.may_observe(peer)
    for is_current in (True, False):
        peer.authentication = cast(Any, Session(is_current=is_current))
        assert endpoints.may_observe(peer) is is_current
