"""A small cluster's metadata for tests: brokers, a seeded random, and a log of what was decided."""

from random import Random
from uuid import UUID

from millstream.config.broker_config import BrokerConfig
from millstream.config.loading import load_broker_config
from millstream.formats.model.errors import ErrorCode
from millstream.formats.model.identifiers import BrokerId, TopicName
from millstream.node.metadata.brokers import RegistrationRequest, fence_broker, register_broker, unfence_broker
from millstream.node.metadata.elections import IsrChange, IsrChangeResult, alter_partitions
from millstream.node.metadata.features import missing_features
from millstream.node.metadata.image import MetadataDelta, MetadataImage, PartitionState, apply
from millstream.node.metadata.records import Decision, Endpoint, FeatureLevelRecord, MetadataRecord, encode_record
from millstream.node.metadata.topics import NewTopic, create_topics

CLUSTER_ID = "4L6g3nShT-eMCtK--X86sw"


class Cluster:
    """Applies decisions as a controller would, and keeps the bytes that it would have written."""

    def __init__(self, broker_count: int = 1, *settings: str) -> None:
        self.image = MetadataImage(cluster_id=CLUSTER_ID)
        self.config: BrokerConfig = load_broker_config(overrides=settings)
        self.random = Random(1)
        self.log: list[bytes] = []
        self.starts = 0
        self.write(missing_features(self.image))
        for number in range(1, broker_count + 1):
            self.add(introduction(number))

    def add(self, broker: RegistrationRequest) -> None:
        """A broker registers and is unfenced."""
        self.take(register_broker(self.image, broker, self.config, next_offset=len(self.log)))
        self.unfence(broker.broker_id)

    def write(self, records: tuple[MetadataRecord, ...] | list[MetadataRecord]) -> MetadataDelta:
        self.log += [encode_record(record) for record in records]
        self.image, delta = apply(self.image, records, offset=len(self.log) - 1, epoch=1)
        return delta

    def create(self, *topics: NewTopic) -> list[ErrorCode]:
        decision = create_topics(self.image, topics, self.config, self.random)
        self.write(decision.records)
        return [result.error for result in decision.results]

    def fence(self, *numbers: int) -> None:
        for number in numbers:
            self.take(fence_broker(self.image, BrokerId(number), self.config))

    def unfence(self, *numbers: int) -> None:
        for number in numbers:
            self.take(unfence_broker(self.image, BrokerId(number), self.config))

    def restart(self, number: int, *, clean: bool, unfence: bool = True, disk: UUID | None = None) -> None:
        """A new process of the broker registers, and catches up with the metadata; `disk` is a new one."""
        self.starts += 1
        previous = self.image.brokers.get(BrokerId(number))
        again = introduction(
            number,
            incarnation_id=UUID(int=5000 + self.starts),
            previous_broker_epoch=previous.epoch if clean and previous is not None else -1,
            **({} if disk is None else {"log_dirs": (disk,)}),
        )
        self.take(register_broker(self.image, again, self.config, next_offset=len(self.log)))
        if unfence:
            self.unfence(number)

    def partition(self, topic: str = "a", number: int = 0) -> PartitionState:
        return self.image.topics[TopicName(topic)].partitions[number]

    def alter_isr(
        self, *isr: int, topic: str = "a", number: int = 0, broker: int | None = None, **changes: int
    ) -> IsrChangeResult:
        """The leader (or another broker) asks for another ISR of a partition."""
        state = self.partition(topic, number)
        sender = self.image.brokers[BrokerId(state.leader if broker is None else broker)]
        known = self.image.brokers
        fields = {"leader_epoch": state.leader_epoch, "partition_epoch": state.partition_epoch} | changes
        change = IsrChange(
            topic_id=self.image.topics[TopicName(topic)].id,
            partition=number,
            new_isr=[(each, known[BrokerId(each)].epoch if BrokerId(each) in known else -1) for each in isr],
            **fields,
        )
        decision = alter_partitions(self.image, sender.id, sender.epoch, [change], self.config)
        self.take(decision)
        return decision.results[0]

    def set_feature(self, name: str, level: int) -> None:
        self.write([FeatureLevelRecord(name=name, feature_level=level)])

    def take(self, decision: Decision[object]) -> MetadataDelta:
        return self.write(decision.records)


def introduction(number: int, **changes: object) -> RegistrationRequest:
    values: dict[str, object] = {
        "broker_id": BrokerId(number),
        "incarnation_id": UUID(int=1000 + number),
        "cluster_id": CLUSTER_ID,
        "end_points": (Endpoint(name="PLAINTEXT", host="localhost", port=9090 + number),),
    }
    return RegistrationRequest(**(values | changes))  # type: ignore[arg-type]
