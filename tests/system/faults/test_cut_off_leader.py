"""A producer with requests under way to a leader that is cut off from the other nodes, and not from its clients.

The leader is deposed and does not hear of it. The producer is often connected to this node alone, so only this node can
make it look for another.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from tests.repository import REPOSITORY
from tests.system.chaos import containment

_DELIVERED = "delivered while the leader was cut off"
_TIMEOUT_SECONDS = 120.0


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("idempotent", ["true", "false"])
def test_a_librdkafka_producer_goes_on_at_the_new_leader(idempotent: str) -> None:
    if not containment.is_possible():
        pytest.skip("network namespaces are not permitted here")
    command = [*containment.unshare(), sys.executable, "-m", "tests.system.faults.test_cut_off_leader", idempotent]
    done = subprocess.run(command, cwd=REPOSITORY, env=os.environ, capture_output=True, text=True)
    assert done.stdout.strip() == _DELIVERED, done.stdout + done.stderr


def _run(idempotent: str, directory: Path) -> None:
    """In namespaces of its own. The producer would wait for five minutes for a response."""
    from confluent_kafka import Producer

    from tests.system.chaos.cluster import Cluster
    from tests.system.chaos.network import Bridged, Disks

    with Cluster("millstream", 3, Bridged(3), Disks(directory, small=False), directory, {}) as cluster:
        cluster.create_topic("t", 3)
        controller = cluster.controller()
        partition, leader = next(item for item in cluster.leaders("t").items() if item[1] != controller)
        settings = {"request.timeout.ms": 300_000, "socket.timeout.ms": 300_000, "message.timeout.ms": 900_000}
        producer = Producer(
            {"bootstrap.servers": cluster.bootstrap, "enable.idempotence": idempotent == "true", **settings}
        )
        delivered: list[bool] = []

        def send() -> None:
            producer.produce("t", b"x", partition=partition, on_delivery=lambda error, _: delivered.append(not error))

        send()
        assert producer.flush(_TIMEOUT_SECONDS) == 0 and delivered == [True]
        for other in cluster.nodes:
            if other != leader:
                cluster.network.cut(leader, other)
                cluster.network.cut(other, leader)
        until = time.monotonic() + _TIMEOUT_SECONDS
        while len(delivered) == 1 and time.monotonic() < until:
            send()
            producer.poll(0.02)
        print(_DELIVERED if delivered[1:2] == [True] else f"not delivered within {_TIMEOUT_SECONDS:g} s: {delivered}")
        producer.purge()
        producer.flush(5)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as kept:
        _run(sys.argv[1], Path(kept))
    sys.stdout.flush()
    os._exit(0)  # clients that hang must not keep a finished run
