"""A small cluster's metadata for tests: brokers, a seeded random, and a log of what was decided."""

from random import Random
from uuid import UUID

from millstream.config.broker_config import BrokerConfig
from millstream.config.loading import load_broker_config
from millstream.metadata.application import apply
from millstream.metadata.brokers import BrokerIntroduction, missing_features, register_broker
from millstream.metadata.decision import Decision
from millstream.metadata.image import MetadataDelta, MetadataImage
from millstream.metadata.record_codec import encode_record
from millstream.metadata.records import Endpoint, MetadataRecord
from millstream.metadata.topics import NewTopic, create_topics
from millstream.model.errors import ErrorCode
from millstream.model.identifiers import BrokerId

CLUSTER_ID = "4L6g3nShT-eMCtK--X86sw"


class Cluster:
    """Applies decisions as a controller would, and keeps the bytes that it would have written."""

    def __init__(self, broker_count: int = 1, *settings: str) -> None:
        self.image = MetadataImage(cluster_id=CLUSTER_ID)
        self.config: BrokerConfig = load_broker_config(overrides=settings)
        self.random = Random(1)
        self.log: list[bytes] = []
        self.write(missing_features(self.image))
        for number in range(1, broker_count + 1):
            self.write(
                register_broker(self.image, introduction(number), broker_epoch=len(self.log), fenced=False).records
            )

    def write(self, records: tuple[MetadataRecord, ...] | list[MetadataRecord]) -> MetadataDelta:
        self.log += [encode_record(record) for record in records]
        self.image, delta = apply(self.image, records, offset=len(self.log) - 1, epoch=1)
        return delta

    def create(self, *topics: NewTopic) -> list[ErrorCode]:
        decision = create_topics(self.image, topics, self.config, self.random)
        self.write(decision.records)
        return [result.error for result in decision.results]

    def take(self, decision: Decision[object]) -> MetadataDelta:
        return self.write(decision.records)


def introduction(number: int, **changes: object) -> BrokerIntroduction:
    values: dict[str, object] = {
        "broker_id": BrokerId(number),
        "incarnation_id": UUID(int=1000 + number),
        "cluster_id": CLUSTER_ID,
        "end_points": (Endpoint(name="PLAINTEXT", host="localhost", port=9090 + number),),
    }
    return BrokerIntroduction(**(values | changes))  # type: ignore[arg-type]
