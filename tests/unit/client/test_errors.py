"""librdkafka's errors become ours, each with a next step."""

import pytest
from confluent_kafka import KafkaError, KafkaException

from millstream.client import errors


@pytest.mark.parametrize(
    ("code", "kind", "advice"),
    [
        (KafkaError._TRANSPORT, errors.NoBrokerError, "millstream serve"),
        (KafkaError._ALL_BROKERS_DOWN, errors.NoBrokerError, "millstream serve"),
        (KafkaError._TIMED_OUT, errors.DeadlineError, "timeout"),
        (KafkaError._MSG_TIMED_OUT, errors.DeadlineError, "timeout"),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, errors.TopicNotFoundError, "topic create orders"),
        (KafkaError._UNKNOWN_PARTITION, errors.TopicNotFoundError, "topic describe orders"),
        (KafkaError.TOPIC_ALREADY_EXISTS, errors.TopicExistsError, "exist_ok"),
        (KafkaError.OFFSET_OUT_OF_RANGE, errors.OffsetOutOfRangeError, "earliest"),
        (KafkaError.INVALID_MSG, errors.DamagedRecordsError, "log dump --check"),
        (KafkaError.MSG_SIZE_TOO_LARGE, errors.RefusedError, "max.message.bytes"),
        (KafkaError.INVALID_PARTITIONS, errors.RefusedError, "INVALID_PARTITIONS"),
    ],
)
def test_errors_of_kafka_become_ours_with_advice(code: int, kind: type[errors.MillstreamError], advice: str) -> None:
    for error in (KafkaError(code), KafkaException(KafkaError(code))):
        translated = errors.from_kafka(error, bootstrap="here:1", topic="orders")
        assert type(translated) is kind
        assert advice in str(translated)


def test_every_error_is_also_what_python_calls_it() -> None:
    assert issubclass(errors.NoBrokerError, ConnectionError)
    assert issubclass(errors.DeadlineError, TimeoutError)
    assert issubclass(errors.TopicNotFoundError, LookupError)
    assert issubclass(errors.EncodingError, ValueError)


def test_something_that_is_no_kafka_error() -> None:
    assert str(errors.from_kafka(ValueError("odd"), bootstrap="here:1")) == "odd"
