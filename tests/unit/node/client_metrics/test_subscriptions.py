"""When a client may ask and push, and for what: the rules of Kafka's ClientMetricsManager."""

from uuid import UUID

import pytest

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.node.client_metrics.core.subscriptions import ClientInstance, ClientInstances

JAVA = {"client_id": "app-1", "client_software_name": "apache-kafka-java", "client_source_address": "10.0.0.1"}
ID = UUID(int=7)


def instances(*resources: dict[str, str]) -> ClientInstances:
    made = ClientInstances()
    made.subscribe(resources)
    return made


def push(instance: ClientInstance, now_ms: float, *, terminating: bool = False, id_: int | None = None) -> ErrorCode:
    try:
        instance.check_push(now_ms, instance.subscription_id if id_ is None else id_, terminating=terminating)
    except KafkaError as error:
        return error.code
    return ErrorCode.NONE


def test_subscriptions_that_match_are_joined() -> None:
    made = instances(
        {"metrics": "b,a", "interval.ms": "5000", "match": "client_id=app-.*"},
        {"metrics": "c", "interval.ms": "1000", "match": "client_software_name=librdkafka"},
        {"metrics": "a,d", "match": "client_source_address=10\\.0\\..*, client_id=app-1"},
    )
    instance = made.get(ID, JAVA, "User:x", 0)
    assert (instance.metrics, instance.interval_ms) == (("a", "b", "d"), 5000)
    assert instances({"metrics": "a,*"}).get(ID, JAVA, "", 0).metrics == ("*",)
    assert instances().get(ID, JAVA, "", 0).metrics == ()
    assert instances({"match": "client_id=app", "metrics": "a"}).get(ID, JAVA, "", 0).metrics == ()  # the whole value


def test_requests_before_the_interval_is_over() -> None:
    instance = instances({"metrics": "a", "interval.ms": "1000"}).get(ID, JAVA, "", 0)
    instance.check_get(0)
    with pytest.raises(KafkaError) as refused:
        instance.check_get(500)
    assert refused.value.code is ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert push(instance, 600) is ErrorCode.NONE  # right after the subscription: the client's jitter
    assert push(instance, 1500) is ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert push(instance, 1600) is ErrorCode.NONE
    assert push(instance, 1700, terminating=True) is ErrorCode.NONE
    assert push(instance, 9999) is ErrorCode.INVALID_REQUEST


def test_a_changed_subscription_has_a_new_id() -> None:
    made = instances({"metrics": "a", "interval.ms": "1000"})
    before = made.get(ID, JAVA, "", 0)
    before.check_get(0)
    made.subscribe([{"metrics": "b", "interval.ms": "1000"}])
    after = made.get(ID, JAVA, "", 10)
    assert after.subscription_id != before.subscription_id
    assert push(after, 20, id_=before.subscription_id) is ErrorCode.UNKNOWN_SUBSCRIPTION_ID
    after.last_error = ErrorCode.UNKNOWN_SUBSCRIPTION_ID
    after.check_get(30)
    assert push(after, 9000) is ErrorCode.NONE


def test_silent_clients_are_forgotten() -> None:
    made = instances({"metrics": "a", "interval.ms": "100000"})
    made.get(ID, JAVA, "", 0)
    made.get(UUID(int=8), JAVA, "", 299_999)
    made.expire(299_999)
    assert len(made) == 2
    made.expire(300_000)
    assert [each.id for each in made.all] == [UUID(int=8)]
