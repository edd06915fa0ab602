"""Errors after which a producer cannot go on: librdkafka raises them from `poll` and `flush`."""

from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from millstream.client.connection import Connection
from millstream.client.errors import MillstreamError
from millstream.client.publisher import Publisher


class DeadProducer:
    """Accepts records, and fails when it is served."""

    def produce(self, *_: Any, **__: Any) -> None:
        pass

    def poll(self, _: float) -> int:
        raise KafkaException(KafkaError(KafkaError.CLUSTER_AUTHORIZATION_FAILED, "no idempotence", fatal=True))

    flush = poll

    def __len__(self) -> int:
        return 1


@pytest.fixture
def publisher(monkeypatch: pytest.MonkeyPatch) -> Publisher:
    made = Publisher(Connection("localhost:1", {}, 1.0))
    monkeypatch.setattr(made, "_producer", lambda **_: DeadProducer())
    return made


def test_a_refused_record_raises_its_error(publisher: Publisher) -> None:
    with pytest.raises(MillstreamError, match="not allowed"):
        publisher.publish("t", b"x", None, None, None, None)
    publisher.close()


def test_refused_records_raise_their_error(publisher: Publisher) -> None:
    with pytest.raises(MillstreamError, match="not allowed"):
        publisher.publish_many("t", [b"x"] * 3)
    publisher.close()
