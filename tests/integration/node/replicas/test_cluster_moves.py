"""A replica that moves: its copy is made under a throttle, and what is left behind is removed."""

import pytest

from tests.unit.node.replicas.conftest import Replicated, eventually
from tests.wire import batch, values

TOPIC, BROKER = 2, 4
NO_LIMIT = str((1 << 63) - 1)


def alter(replicated: Replicated, kind: int, name: str, **settings: str) -> None:
    configs = [
        {"name": key.replace("_", "."), "config_operation": 0, "value": value} for key, value in settings.items()
    ]
    resource = {"resource_type": kind, "resource_name": name, "configs": configs}
    (row,) = (
        replicated.wire(1).call("incremental_alter_configs", 1, resources=[resource], validate_only=False).responses
    )
    assert row.error_code == 0, row


def has_setting(replicated: Replicated, asked: int, kind: int, name: str, setting: str, value: str) -> None:
    keys = [setting.replace("_", ".")]
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": keys}
    (row,) = replicated.wire(asked).call("describe_configs", 4, resources=[resource]).results
    assert [each.value for each in row.configs] == [value], row


def reassign(replicated: Replicated, topic: str, replicas: list[int]) -> None:
    response = replicated.wire(1).call(
        "alter_partition_reassignments",
        0,
        timeout_ms=20_000,
        topics=[{"name": topic, "partitions": [{"partition_index": 0, "replicas": replicas}]}],
    )
    assert response.error_code == 0 and response.responses[0].partitions[0].error_code == 0, response


@pytest.mark.parametrize(("side", "broker"), [("leader", "1"), ("follower", "2")])
def test_a_throttle_holds_a_new_replica_up_until_it_is_lifted(side: str, broker: str, replicated: Replicated) -> None:
    topic, other = (replicated.create([1], max_message_bytes="2000000") for _ in range(2))
    for each in (topic, other):
        for _ in range(4):
            assert replicated.wire(1).produce(each, batch(b"x" * 900_000)).error_code == 0
    rate, throttled = f"{side}_replication_throttled_rate", f"{side}_replication_throttled_replicas"
    alter(replicated, TOPIC, topic, **{throttled: "*"})
    alter(replicated, BROKER, broker, **{rate: "1"})
    # Settings have to get to the broker before the copying begins.
    eventually(lambda: has_setting(replicated, int(broker), TOPIC, topic, throttled, "*"))
    eventually(lambda: has_setting(replicated, int(broker), BROKER, broker, rate, "1"))
    reassign(replicated, topic, [1, 2])
    reassign(replicated, other, [1, 2])
    replicated.wait_for(other, isr={1, 2}, asked=1)  # begun later, as large, and not throttled
    assert replicated.partition(topic, asked=1).isr_nodes == [1]
    alter(replicated, BROKER, broker, **{rate: NO_LIMIT})
    replicated.wait_for(topic, isr={1, 2}, asked=1)


def test_a_replica_that_is_no_longer_one_is_removed(replicated: Replicated) -> None:
    topic = replicated.create([1, 2])
    for number in range(10):
        assert replicated.wire(1).produce(topic, batch(b"%d" % number)).error_code == 0
    reassign(replicated, topic, [3, 2])
    replicated.wait_for(topic, isr={2, 3}, asked=2, leader=3)
    assert values(replicated.fetch(3, topic, 0).records) == [b"%d" % number for number in range(10)]
    directory = replicated.cluster.data_dir(1) / f"{topic}-0"

    def check() -> None:
        assert not directory.exists()

    eventually(check)
    assert replicated.wire(3).produce(topic, batch(b"new leader")).error_code == 0
