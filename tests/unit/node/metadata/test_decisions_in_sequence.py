"""Any sequence of decisions leaves a consistent image, and the written log gives the same image again."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from millstream.formats.model.errors import ErrorCode
from millstream.formats.model.identifiers import BrokerId
from millstream.node.metadata.brokers import allocate_producer_ids
from millstream.node.metadata.configs import ConfigChange, alter_configs, incremental_alter_configs
from millstream.node.metadata.image import ConfigResource, MetadataImage, apply, replay
from millstream.node.metadata.records import BrokerRegistrationChangeRecord, decode_record
from millstream.node.metadata.topic_names import folded
from millstream.node.metadata.topics import (
    NewPartitions,
    NewTopic,
    TopicReference,
    create_partitions,
    create_topics,
    delete_topics,
)
from tests.examples import examples
from tests.unit.node.metadata.cluster import CLUSTER_ID, Cluster

NAMES = st.sampled_from(["a", "a", "b", "c.d", "c_d", "not ok"])
NUMBERS = st.integers(1, 4)
RESOURCES = st.sampled_from(
    [
        ConfigResource(2, "a"),
        ConfigResource(2, "b"),
        ConfigResource(4, ""),
        ConfigResource(4, "1"),
        ConfigResource(8, ""),
    ]
)
SETTINGS = st.sampled_from(["retention.ms", "cleanup.policy", "log.retention.ms", "log.cleanup.policy", "no"])
VALUES = st.sampled_from(["1", "-1", "compact", "delete,compact", None])


class Decisions(RuleBasedStateMachine):
    @initialize(broker_count=NUMBERS)
    def start(self, broker_count: int) -> None:
        self.cluster = Cluster(broker_count)

    @rule(
        names=st.lists(NAMES, max_size=3),
        partition_count=st.sampled_from([1, 2, 3, -1, 0]),
        factor=st.sampled_from([1, 1, 2, -1, 0, 4]),
        configs=st.sampled_from([{}, {"retention.ms": "1"}]),
        validate_only=st.sampled_from([False, False, False, True]),
    )
    def create(
        self, names: list[str], partition_count: int, factor: int, configs: dict[str, str], validate_only: bool
    ) -> None:
        cluster = self.cluster
        topics = [
            NewTopic(name=name, partition_count=partition_count, replication_factor=factor, configs=configs)
            for name in names
        ]
        decision = create_topics(cluster.image, topics, cluster.config, cluster.random, validate_only=validate_only)
        before = cluster.image
        delta = cluster.take(decision)
        assert len(decision.results) == len(topics)
        accepted = {each.name for each in decision.results if each.error is ErrorCode.NONE}
        assert set(delta.created) == (set() if validate_only else accepted)
        assert not accepted & set(before.topics)

    @rule(name=NAMES, assignments=st.lists(st.tuples(st.integers(0, 2), st.lists(NUMBERS, max_size=3)), max_size=3))
    def create_as_chosen(self, name: str, assignments: list[tuple[int, list[int]]]) -> None:
        self.cluster.create(NewTopic(name=name, assignments=assignments))

    @rule(names=st.lists(NAMES, max_size=3))
    def delete(self, names: list[str]) -> None:
        references = [TopicReference(name=name) for name in names]
        self.cluster.take(delete_topics(self.cluster.image, references, self.cluster.config))

    @rule(name=NAMES, count=st.integers(-1, 8))
    def grow(self, name: str, count: int) -> None:
        cluster = self.cluster
        request = [NewPartitions(name=name, count=count)]
        cluster.take(create_partitions(cluster.image, request, cluster.config, cluster.random))

    @rule(resource=RESOURCES, name=SETTINGS, operation=st.integers(0, 4), value=VALUES)
    def change_setting(self, resource: ConfigResource, name: str, operation: int, value: str | None) -> None:
        changes = [(resource, [ConfigChange(name, operation, value)])]
        self.cluster.take(incremental_alter_configs(self.cluster.image, changes, self.cluster.config))

    @rule(resource=RESOURCES, name=SETTINGS, value=VALUES)
    def replace_settings(self, resource: ConfigResource, name: str, value: str | None) -> None:
        self.cluster.take(alter_configs(self.cluster.image, [(resource, {name: value})], self.cluster.config))

    @rule(number=NUMBERS, clean=st.booleans())
    def restart(self, number: int, clean: bool) -> None:
        before = self.cluster.image.topics
        self.cluster.restart(number, clean=clean)
        for name, topic in before.items():
            for old, new in zip(topic.partitions, self.cluster.image.topics[name].partitions, strict=True):
                assert new.leader_epoch >= old.leader_epoch + (old.leader == number)

    @rule(number=NUMBERS, fenced=st.sampled_from([-1, 1]))
    def fence(self, number: int, fenced: int) -> None:
        broker = self.cluster.image.brokers.get(BrokerId(number))
        if broker is not None:
            self.cluster.write(
                [BrokerRegistrationChangeRecord(broker_id=broker.id, broker_epoch=broker.epoch, fenced=fenced)]
            )

    @rule(number=NUMBERS)
    def take_producer_ids(self, number: int) -> None:
        broker = self.cluster.image.brokers.get(BrokerId(number))
        if broker is not None:
            before = self.cluster.image.next_producer_id
            self.cluster.take(allocate_producer_ids(self.cluster.image, broker.id, broker.epoch))
            assert self.cluster.image.next_producer_id == before + 1000

    @invariant()
    def topics_are_consistent(self) -> None:
        image = self.cluster.image
        assert {topic.id: topic for topic in image.topics.values()} == image.topics_by_id
        assert image.names_by_folded == {folded(name): name for name in image.topics}
        assert len(image.names_by_folded) == len(image.topics)
        for name, topic in image.topics.items():
            assert topic.name == name
            assert topic.partitions
            for partition in topic.partitions:
                assert len(partition.replicas) == topic.replication_factor == len(partition.directories)
                assert len(set(partition.replicas)) == len(partition.replicas)
                assert set(partition.isr) <= set(partition.replicas) <= set(image.brokers)
                assert partition.leader in partition.isr
                assert partition.leader_epoch >= 0 and partition.partition_epoch >= 0

    @invariant()
    def settings_belong_to_something(self) -> None:
        for resource, values in self.cluster.image.configs.items():
            assert values
            assert resource.type != 2 or resource.name in self.cluster.image.topics

    def teardown(self) -> None:
        image = MetadataImage(cluster_id=CLUSTER_ID)
        for offset, value in enumerate(self.cluster.log):
            image = apply(image, [decode_record(value)], offset=offset, epoch=1).image
        assert image == self.cluster.image
        batches = ((offset, 1, [decode_record(value)]) for offset, value in enumerate(self.cluster.log))
        assert replay(MetadataImage(cluster_id=CLUSTER_ID), batches) == image


Decisions.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=30, deadline=None)
TestDecisions = Decisions.TestCase
