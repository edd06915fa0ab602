"""While the end of a transaction is pending, Millstream responds as Apache Kafka 4.3.1 did.

No Kafka is needed for this. The responses of Kafka are in `pending_end.golden`; `pending_end` says how they were
recorded.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream.testing import EmbeddedCluster
from tests.integration.node.broker.transaction_parity import set_version
from tests.system.cluster.pending_end import SETTINGS, VERSIONS, Nodes, pending_ends
from tests.wire import Wire

_GOLDEN = Path(__file__).with_name("pending_end.golden")


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    with EmbeddedCluster(3, SETTINGS) as cluster:
        addresses = {number: cluster.address(number) for number in cluster.brokers}
        yield Nodes(addresses, cluster.pause, cluster.resume)


def _recorded() -> dict[int, list[str]]:
    """The responses of Kafka, by transaction.version."""
    found: dict[int, list[str]] = {}
    for line in _GOLDEN.read_text().splitlines():
        if line.startswith("== "):
            version = int(line.split()[1])
            found[version] = []
        else:
            found[version].append(line)
    return found


@pytest.mark.parametrize("version", VERSIONS)
def test_it_responds_as_kafka_does(nodes: Nodes, version: int) -> None:
    with Wire(nodes.addresses[nodes.asked]) as wire:
        set_version(wire, version)
    assert pending_ends(nodes, version) == _recorded()[version]


def test_all_versions_were_recorded() -> None:
    assert sorted(_recorded()) == sorted(VERSIONS)
