"""Producer ids are handed out in blocks, once."""

import pytest

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.model.identifiers import BrokerId
from millstream.node.metadata.brokers import allocate_producer_ids
from tests.unit.node.metadata.cluster import Cluster

ONE = BrokerId(1)


def test_producer_ids_are_handed_out_once() -> None:
    cluster = Cluster(1)
    epoch = cluster.image.brokers[ONE].epoch
    blocks = []
    for _ in range(3):
        decision = allocate_producer_ids(cluster.image, ONE, epoch)
        blocks.append((decision.results[0].first, decision.results[0].size))
        cluster.take(decision)
    assert blocks == [(0, 1000), (1000, 1000), (2000, 1000)]


def test_producer_ids_only_for_brokers_of_now() -> None:
    image = Cluster(1).image
    with pytest.raises(KafkaError) as refused:
        allocate_producer_ids(image, BrokerId(2), 0)
    assert refused.value.code is ErrorCode.BROKER_ID_NOT_REGISTERED
    with pytest.raises(KafkaError) as refused:
        allocate_producer_ids(image, ONE, 77)
    assert refused.value.code is ErrorCode.STALE_BROKER_EPOCH
