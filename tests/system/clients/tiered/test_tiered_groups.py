"""Groups and queues over tiered topics: members read most of their records from the tier. The tests of queues are those
with many records: a few would be in the last segment, on the disk."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from millstream.testing import EmbeddedBroker
from tests.s3_server import FaultyStore
from tests.system.clients import brokers, test_groups, test_share_consumer
from tests.system.clients.test_groups import start_member  # noqa: F401  # a fixture
from tests.system.clients.tiered.conftest import TIERED, tiered_settings, until_tiered
from tests.waiting import TIMEOUT_SECONDS

pytestmark = pytest.mark.slow

test_partitions_are_shared_and_pass_on = test_groups.test_partitions_are_shared_and_pass_on
test_broker_killed_in_mid_consumption = test_groups.test_broker_killed_in_mid_consumption
test_each_record_goes_to_one_of_the_workers = test_share_consumer.test_each_record_goes_to_one_of_the_workers
test_a_confirmed_record_never_comes_back = test_share_consumer.test_a_confirmed_record_never_comes_back_through_kill_9

_GROUPS = {"group.initial.rebalance.delay.ms": "200", "group.min.session.timeout.ms": "1000"}
_QUEUES = {
    "group.share.record.lock.duration.ms": "60000",
    "group.share.session.timeout.ms": "6000",
    "group.share.min.session.timeout.ms": "6000",
    "group.share.heartbeat.interval.ms": "1000",
    "group.share.min.heartbeat.interval.ms": "1000",
}
_AT_ONCE = 50


@pytest.fixture(scope="module")
def quick_broker(tier_store: FaultyStore, tmp_path_factory: pytest.TempPathFactory) -> Iterator[brokers.BrokerProcess]:
    settings = {**tiered_settings(tier_store), **_GROUPS}
    started = brokers.start_broker(tmp_path_factory.mktemp("tiered-groups") / "data", settings)
    yield started
    started.stop()


@pytest.fixture(autouse=True)
def tiered_topics(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Topics of the tests of groups are tiered, and what is written is in the tier before the test goes on."""
    if "quick_broker" not in request.fixturenames:
        return
    data_dir: Path = request.getfixturevalue("quick_broker").data_dir
    write = test_groups.write

    def make_topic(bootstrap: str, topic: str) -> None:
        admin = AdminClient({"bootstrap.servers": bootstrap})
        new = NewTopic(topic, test_groups.PARTITIONS, 1, config=TIERED)
        admin.create_topics([new])[topic].result(TIMEOUT_SECONDS)

    def write_to_the_tier(bootstrap: str, topic: str, first: int, count: int) -> set[str]:
        values: set[str] = set()
        for start in range(first, first + count, _AT_ONCE):
            values |= write(bootstrap, topic, start, min(_AT_ONCE, first + count - start))
        for partition in range(test_groups.PARTITIONS):
            until_tiered(data_dir, topic, partition)
        return values

    monkeypatch.setattr(test_groups, "make_topic", make_topic)
    monkeypatch.setattr(test_groups, "write", write_to_the_tier)


class TieredQueue(test_share_consumer.Queue):
    def send(self, *values: str, **options: Any) -> None:
        for start in range(0, len(values), _AT_ONCE):
            super().send(*values[start : start + _AT_ONCE], **options)
        for directory in self.broker.data_dir.glob(f"{self.topic}-*"):
            until_tiered(self.broker.data_dir, self.topic, int(directory.name.rpartition("-")[2]))


@pytest.fixture(scope="module")
def queue_broker(tier_store: FaultyStore) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker({**tiered_settings(tier_store), **_QUEUES}) as started:
        yield started


@pytest.fixture(name="broker")
def broker_of_queues(queue_broker: EmbeddedBroker) -> EmbeddedBroker:
    return queue_broker


@pytest.fixture
def make_queue(queue_broker: EmbeddedBroker) -> Callable[..., TieredQueue]:
    tiered = {name.replace(".", "_"): value for name, value in TIERED.items()}
    return lambda partitions=1, **config: TieredQueue(queue_broker, partitions, **{**tiered, **config})
