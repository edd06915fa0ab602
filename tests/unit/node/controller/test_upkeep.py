"""What the controller does of its own accord."""

from collections.abc import Iterator, Sequence

import pytest

from millstream.formats.model.errors import ErrorCode
from millstream.formats.model.identifiers import BrokerId, TopicName
from millstream.node.controller.controller_role import Upkeep
from millstream.node.metadata.configs import ConfigChange, Operation, incremental_alter_configs
from millstream.node.metadata.elections import IsrChange, alter_partitions
from millstream.node.metadata.image import ConfigResource, PartitionState, ResourceType
from millstream.node.metadata.topic_names import CONSUMER_OFFSETS_TOPIC
from millstream.node.metadata.topics import NewTopic, create_topics
from tests.unit.node.controller.bench import SESSION_SECONDS, Bench


class Kept(Bench):
    def __init__(self) -> None:
        super().__init__()
        self.upkeep = Upkeep(self.controller, self.quorum, self.environment)
        self.quorum.epoch = 2
        self.controller.leading(2)

    def close(self) -> None:
        self.upkeep.close()
        super().close()

    def live(self, seconds: float, *alive: int) -> None:
        """Lets time pass in which these brokers are heard."""
        left = seconds
        while left > 0:
            self.pass_time(min(left, SESSION_SECONDS / 3))
            left -= SESSION_SECONDS / 3
            for broker_id in alive:
                self.beat(broker_id)

    def create(self, name: str, *placements: Sequence[int]) -> None:
        topic = NewTopic(name=name, assignments=list(enumerate(placements)))
        (result,) = self.run(
            self.controller.decide(lambda image, config, chance: create_topics(image, [topic], config, chance))
        )
        assert result.error is ErrorCode.NONE, result

    def allow_unclean(self, topic: str) -> None:
        resource = ConfigResource(ResourceType.TOPIC, topic)
        change = ConfigChange("unclean.leader.election.enable", Operation.SET, "true")
        self.run(
            self.controller.decide(
                lambda image, config, chance: incremental_alter_configs(image, [(resource, [change])], config)
            )
        )

    def partitions(self, topic: str) -> tuple[PartitionState, ...]:
        return self.image.topics[TopicName(topic)].partitions


@pytest.fixture
def kept() -> Iterator[Kept]:
    made = Kept()
    yield made
    made.close()


def test_leaders_go_back_to_the_preferred_replicas(kept: Kept) -> None:
    kept.join(1, 2)
    kept.create("t", (1, 2), (2, 1))
    kept.live(2 * SESSION_SECONDS, 2)
    assert [partition.leader for partition in kept.partitions("t")] == [2, 2]
    kept.beat(1)
    follower_is_back = kept.partitions("t")[0]
    change = IsrChange(
        topic_id=kept.image.topics[TopicName("t")].id,
        partition=0,
        leader_epoch=follower_is_back.leader_epoch,
        partition_epoch=follower_is_back.partition_epoch,
        new_isr=[(2, -1), (1, -1)],
    )
    epoch = kept.image.brokers[BrokerId(2)].epoch
    kept.run(
        kept.controller.decide(lambda image, config, _: alter_partitions(image, BrokerId(2), epoch, [change], config))
    )
    kept.live(30, 1, 2)
    assert kept.partitions("t")[0].leader == 2
    kept.live(300, 1, 2)
    assert kept.partitions("t")[0].leader == 1


def test_a_topic_that_allows_unclean_elections_gets_a_leader_at_once(kept: Kept) -> None:
    kept.join(1, 2)
    kept.create("t", (1, 2))
    kept.live(2 * SESSION_SECONDS, 2)
    kept.live(2 * SESSION_SECONDS)
    assert kept.partitions("t")[0].leader == -1
    kept.peers.pop(1, None)
    again = kept.register(1, process=2)
    assert not kept.beat(1, offset=again).is_fenced
    assert kept.partitions("t")[0].leader == -1, "1 was not in sync"
    kept.allow_unclean("t")
    kept.pass_time(0.1)
    assert kept.partitions("t")[0].leader == 1


def test_internal_topics_grow_with_the_cluster(kept: Kept) -> None:
    kept.join(1)
    kept.create(CONSUMER_OFFSETS_TOPIC, *[(1,)] * 6)
    kept.create("t", (1,))
    kept.join(2)
    kept.pass_time(0.1)
    grown = kept.partitions(CONSUMER_OFFSETS_TOPIC)
    assert [partition.replicas for partition in grown] == [(1, 2), (2, 1)] * 3
    assert all(partition.adding_replicas == (2,) for partition in grown)
    assert kept.partitions("t")[0].replicas == (1,)
    kept.join(3, 4)
    kept.pass_time(0.1)
    assert kept.partitions(CONSUMER_OFFSETS_TOPIC) == grown, "one thing after the other"
