"""Fair turns on a real broker: connections of a busy tenant wait, and every request gets its response in order."""

import socket

from millstream.testing import EmbeddedBroker
from tests.integration.node.quotas.test_quotas import metric
from tests.wire import Wire, decode, framed, request

CONNECTIONS, REQUESTS = 20, 100


def test_all_tenants_are_served() -> None:
    with EmbeddedBroker() as broker:
        host, _, port = broker.bootstrap_servers.rpartition(":")
        with Wire(broker.bootstrap_servers) as other:
            other.create_topic("turns")
            assert metric(broker, "millstream_tenants") == 1
            busy = []
            for _ in range(CONNECTIONS):
                wire = Wire(broker.bootstrap_servers)
                wire.socket.close()
                wire.socket = socket.create_connection((host, int(port)), 30, ("127.0.0.2", 0))
                busy.append(wire)
            frames = b"".join(
                framed(request("metadata", 12, {"topics": [{"name": "turns"}]}, number)) for number in range(REQUESTS)
            )
            for wire in busy:
                wire.send_raw(frames)
                assert other.call("metadata", 12, topics=[{"name": "turns"}]).topics[0].error_code == 0
            assert metric(broker, "millstream_tenants") == 2
            for wire in busy:
                numbers = [decode("metadata", 12, wire.receive_raw())[0] for _ in range(REQUESTS)]
                assert numbers == list(range(REQUESTS))
            assert metric(broker, "millstream_turn_waits_total") > 0
            for wire in busy:
                wire.close()
