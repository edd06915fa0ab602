"""What a gateway decides itself is in the audit topic of the cluster, and no one else can write such events."""

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from millstream.access.rules_file import parse_rules
from millstream.formats.model.errors import ErrorCode
from millstream.gateway.http.configuration import read_credentials
from millstream.gateway.server import Gateway, GatewayOptions
from millstream.raw_client import Cluster, TopicPartition
from tests.integration.gateway.conftest import Caller
from tests.integration.gateway.test_roles_and_sign_in import MASKS, PEOPLE, ROLES, SUBJECTS, Browser, basic
from tests.integration.raw_client.kafka_with_security import SecuredKafka, secured_millstream
from tests.oidc import Provider
from tests.waiting import eventually, until
from tests.wire import values

pytestmark = pytest.mark.timeout(300)
ALICE = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "PLAIN",
    "sasl.username": "alice",
    "sasl.password": "wonderland",
}
EVENT: dict[str, Any] = {
    "time_ms": 1,
    "kind": "administration",
    "result": "success",
    "principal": "User:x",
    "address": "::1",
}


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredKafka]:
    settings = {"millstream.audit.enable": "true", "millstream.audit.gateways": "User:alice;User:CN=g,O=Acme"}
    with secured_millstream(tmp_path_factory.mktemp("kafka"), settings) as running:
        running.add_user("ann", "ann-secret")
        yield running


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    running = Provider()
    yield running
    running.close()


@pytest.fixture(scope="module")
def gateway(kafka: SecuredKafka, provider: Provider) -> Iterator[Gateway]:
    options = GatewayOptions(
        kafka.address("SASL"),
        settings=ALICE,
        credentials=read_credentials(PEOPLE),
        rules=parse_rules(ROLES + SUBJECTS + MASKS + provider.access_rules()),
    )
    with Gateway(options) as running:
        yield running


def recorded(kafka: SecuredKafka) -> list[dict[str, Any]]:
    """The events of gateways in the topic."""
    with Cluster(kafka.address("PLAINTEXT")) as cluster:
        if "__millstream_audit" not in cluster.topics():
            return []
        data = cluster.fetch(TopicPartition("__millstream_audit", 0), 0, max_bytes=8 << 20, max_wait_ms=100).data
    return [event for event in map(json.loads, values(data)) if "gateway" in event]


def test_decisions_of_the_gateway_are_in_the_topic(kafka: SecuredKafka, gateway: Gateway, provider: Provider) -> None:
    ask = Caller(gateway.address)
    wrong = {"Authorization": "Basic YWRhOndyb25nLXNlY3JldA=="}  # ada:wrong-secret
    assert ask("GET", "/topics", headers=wrong).status == 401
    assert ask("GET", "/topics", headers=basic("nora")).status == 403
    assert ask("POST", "/topics", {"name": "x"}, basic("vera")).status == 403
    assert ask("POST", "/topics", {"name": "pay", "partitions": 1}, basic("ada")).status == 201
    assert ask("DELETE", "/topics/missing", headers=basic("ada")).status == 404
    assert ask("GET", "/subjects/closed/versions", headers=basic("vera")).status == 403
    schema = {"schema": '"string"'}
    assert ask("POST", "/subjects/open-1/versions", schema, basic("otto")).status == 200
    assert (
        ask("POST", "/v1/topics/pay/produce", {"records": [{"value": {"card": "4111"}}]}, basic("otto")).status == 200
    )
    for _ in range(3):  # masked: recorded once
        assert ask("POST", "/consumers/g/subscribe", {"topics": ["pay"]}, basic("otto")).status == 200
        found = ask("GET", "/consumers/g/poll?timeout_ms=20000&format=json", headers=basic("otto")).json["messages"]
        assert found[0]["value"]["card"] == "***"
        assert ask("DELETE", "/consumers/g", headers=basic("otto")).status in (204, 404)
    browser = Browser(gateway.address)
    assert browser("GET", "/console/sign-in/callback?code=a-code&state=chosen")[0] == 401
    assert browser.sign_in(provider)[0] == 303
    assert ask("POST", "/topics", {}, basic("ada") | {"Origin": "http://evil.example"}).status == 403
    names = ("kind", "result", "principal", "mechanism", "api", "error", "resource_name")
    wanted = {
        ("authentication", "failure", "User:ada", "basic", None, None, None),
        ("authorization", "denied", "User:nora", None, None, None, None),
        ("authorization", "denied", "User:vera", None, "POST /topics", 40302, None),
        ("administration", "success", "User:ada", None, "POST /topics", None, None),
        ("administration", "failure", "User:ada", None, "DELETE /topics/{topic}", 40403, None),
        ("authorization", "denied", "User:vera", None, "GET /subjects/{subject}/versions", 40301, None),
        ("administration", "success", "User:otto", None, "POST /subjects/{subject}/versions", None, None),
        ("authorization", "masked", "User:otto", None, None, None, "pay"),
        ("authentication", "failure", "User:ANONYMOUS", "oidc", None, None, None),
        ("authentication", "success", "User:ann", "oidc", None, None, None),
        ("authorization", "denied", "User:ANONYMOUS", None, None, None, None),
    }

    def check() -> list[dict[str, Any]]:
        events = recorded(kafka)
        assert {tuple(event.get(name) for name in names) for event in events} == wanted
        return events

    events = eventually(check)
    assert len(events) == len(wanted), "each once"
    for event in events:
        assert (event["version"], event["node"], event["address"]) == (1, 1, "127.0.0.1")
        assert event["gateway"] == {"principal": "User:alice", "address": "127.0.0.1", "listener": "SASL"}
    text = json.dumps(events)
    assert "wrong-secret" not in text and "4111" not in text
    metrics = ask("GET", "/metrics", headers=basic("vera")).body.decode()
    assert f'millstream_gateway_audit_events_total{{result="reported"}} {len(wanted)}' in metrics


def test_a_lock_out_is_one_event(kafka: SecuredKafka, gateway: Gateway) -> None:
    ask = Caller(gateway.address)
    refused: list[int] = []

    def guess(number: int) -> None:
        header = {"Authorization": f"Bearer guess-{number}"}
        while 429 not in refused:
            refused.append(ask("GET", "/topics", headers=header).status)

    threads = [threading.Thread(target=guess, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    until(lambda: any("too many" in event.get("reason", "") for event in recorded(kafka)))
    assert sum("too many" in event.get("reason", "") for event in recorded(kafka)) == 1


def test_no_one_else_can_report_events(kafka: SecuredKafka) -> None:
    before = len(recorded(kafka))
    ann = ALICE | {"sasl.mechanism": "SCRAM-SHA-256", "sasl.username": "ann", "sasl.password": "ann-secret"}
    text = json.dumps(EVENT | {"reason": "forged"})
    for listener, settings in (("SASL", ann), ("PLAINTEXT", {})):  # a user without rights; a super user
        with Cluster(kafka.address(listener), settings) as cluster:
            response = cluster.call("report_audit_events", events=[text])
            assert response.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            assert "millstream.audit.gateways" in response.error_message and response.accepted == 0
    with Cluster(kafka.address("SASL"), ALICE) as cluster:
        for wrong in ("{", "[]", "1" * 20_000, json.dumps(EVENT | {"node": 7}), json.dumps(EVENT | {"gateway": {}})):
            response = cluster.call("report_audit_events", events=[text, wrong])
            assert response.error_code == ErrorCode.INVALID_REQUEST and response.error_message, wrong
        assert cluster.call("report_audit_events", events=[text] * 101).error_code == ErrorCode.INVALID_REQUEST
        assert cluster.call("report_audit_events", events=[json.dumps(EVENT | {"reason": "last"})]).accepted == 1
    until(lambda: recorded(kafka)[-1].get("reason") == "last")
    assert len(recorded(kafka)) == before + 1


def test_clients_of_kafka_are_not_offered_the_api(kafka: SecuredKafka) -> None:
    with Cluster(kafka.address("PLAINTEXT")) as cluster:
        for name, offered in (("apache-kafka-java", False), ("millstream", True)):
            response = cluster.call("api_versions", client_software_name=name, client_software_version="1")
            rows = response.api_keys
            assert (10_000 in {row.api_key for row in rows}) is offered
