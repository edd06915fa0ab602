"""Users, tokens, quotas and explanations of ACLs over HTTP, on a secured broker and on one without an authorizer."""

import logging
from collections.abc import Iterator

import httpx
import pytest

from millstream.access.rules_file import parse_rules
from millstream.admin.users import UserAdmin
from millstream.gateway.http.configuration import Limits
from millstream.gateway.server import Gateway, GatewayOptions
from millstream.raw_client import Cluster, WireError
from tests.integration.gateway.conftest import Caller
from tests.integration.raw_client.kafka_with_security import SecuredKafka, secured_millstream

pytestmark = pytest.mark.timeout(300)
RULES = '[roles]\nusers = { alice = "admin", vera = "viewer" }\n'
ALICE, VERA = ("alice", "wonder"), ("vera", "vera-secret")


def login(name: str, password: str) -> dict[str, str]:
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": name,
        "sasl.password": password,
    }


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredKafka]:
    directory = tmp_path_factory.mktemp("kafka")
    with secured_millstream(directory, {"delegation.token.secret.key": "for tests only"}) as running:
        for user in (ALICE, VERA):
            running.add_user(*user)
        with Cluster(running.address("PLAINTEXT")) as cluster:
            cluster.create_topic("orders", 1, 1)
        yield running


@pytest.fixture(scope="module")
def http(kafka: SecuredKafka) -> Iterator[httpx.Client]:
    options = GatewayOptions(
        kafka.address("SASL"),
        settings=login(*ALICE),
        pass_through="SCRAM-SHA-256",
        rules=parse_rules(RULES),
        limits=Limits(max_consumers_per_caller=1),
    )
    with Gateway(options) as gateway, httpx.Client(base_url=gateway.url, auth=ALICE, timeout=70) as client:
        yield client


def can_log_in(kafka: SecuredKafka, name: str, password: str) -> bool:
    with Cluster(kafka.address("SASL"), login(name, password)) as cluster:
        try:
            return bool(cluster.brokers())
        except WireError:
            return False


def test_users_are_created_listed_and_deleted(
    http: httpx.Client, kafka: SecuredKafka, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    body = {"name": "otto", "password": "first-pass"}
    assert http.post("/users", json=body).status_code == 201
    assert can_log_in(kafka, "otto", "first-pass")
    found = {user["name"]: user["iterations"] for user in http.get("/users").json()["users"]}
    assert found["otto"] == {"SCRAM-SHA-256": 8192, "SCRAM-SHA-512": 8192}
    again = http.post("/users", json=body)
    assert again.status_code == 400 and "user otto exists" in again.json()["message"]
    assert http.put("/users/otto/password", json={"password": "second-pass"}).status_code == 204
    assert can_log_in(kafka, "otto", "second-pass") and not can_log_in(kafka, "otto", "first-pass")
    assert http.delete("/users/otto").status_code == 204
    assert not can_log_in(kafka, "otto", "second-pass")
    assert http.delete("/users/otto").status_code == 404
    assert http.put("/users/otto/password", json={"password": "x"}).status_code == 404
    for wrong in ({"name": "o"}, {"name": "o", "password": ""}, {**body, "mechanisms": ["MD5"]}, {**body, "role": "x"}):
        assert http.post("/users", json=wrong).status_code == 400, wrong
    assert not any(secret in caplog.text for secret in ("first-pass", "second-pass"))


def test_tokens_are_listed_without_their_secret_and_expire(http: httpx.Client, kafka: SecuredKafka) -> None:
    with Cluster(kafka.address("SASL"), login(*ALICE)) as cluster:
        made = UserAdmin(cluster).create_token(None, [])
    listed = http.get("/tokens")
    (token,) = listed.json()["tokens"]
    assert (token["token_id"], token["owner"]) == (made.token_id, "User:alice")
    assert made.hmac not in listed.text
    assert http.delete(f"/tokens/{made.token_id}").status_code == 204
    assert http.delete(f"/tokens/{made.token_id}").status_code == 404
    assert http.get("/tokens").json() == {"tokens": []}


def test_quotas_are_set_and_read(http: httpx.Client) -> None:
    entity = {"user": "otto", "client-id": None}
    values = {"producer_byte_rate": 1000.0, "consumer_byte_rate": 2000.0}
    assert http.patch("/quotas", json={"entity": entity, "values": values, "dry_run": True}).status_code == 204
    assert http.get("/quotas?user=otto").json() == {"quotas": []}
    assert http.patch("/quotas", json={"entity": entity, "values": values}).status_code == 204
    assert http.get("/quotas?user=otto").json() == {"quotas": [{"entity": entity, "quotas": values}]}
    assert http.patch("/quotas", json={"entity": entity, "values": dict.fromkeys(values)}).status_code == 204
    assert http.get("/quotas?user=otto").json() == {"quotas": []}
    for wrong, says in (
        ({"entity": {}, "values": values}, "'entity' is empty"),
        ({"entity": {"user": "a", "ip": "192.0.2.1"}, "values": values}, "cannot be combined"),
        ({"entity": {"user": "a"}, "values": {"producer_bytes_rate": 1}}, "did you mean"),
        ({"entity": {"user": "a"}, "values": {"producer_byte_rate": -1}}, "greater than 0"),
        ({"entity": {"user": "a"}, "values": {}}, "length"),
    ):
        refused = http.patch("/quotas", json=wrong)
        assert refused.status_code == 400 and says in refused.json()["message"], refused.text


def test_explain_names_the_acl_that_decides(http: httpx.Client, kafka: SecuredKafka) -> None:
    asked = {"principal": "User:otto", "operation": "read", "resource_type": "topic", "resource_name": "orders"}
    denied = http.get("/acls/explain", params=asked).json()
    assert denied["allowed"] is False and denied["acl"] is None
    assert denied["command"] == "millstream acl add User:otto read --topic orders"
    allowed = http.get("/acls/explain", params={**asked, "principal": "User:alice"}).json()
    assert allowed["allowed"] is True and "super user" in allowed["reason"]
    for wrong, says in (
        ({"operation": "raed"}, "did you mean 'read'"),
        ({"operation": "create_tokens"}, "has no operation"),
        ({"resource_type": "table"}, "no resource type"),
        ({"resource_name": ""}, "name of the resource"),
        ({"principal": "otto"}, "not a principal"),
        ({"principal": ""}, "?principal="),
    ):
        refused = http.get("/acls/explain", params={**asked, **wrong})
        assert refused.status_code == 400 and says in refused.json()["message"], refused.text


def test_a_viewer_changes_nothing(http: httpx.Client) -> None:
    for method, path, body in (
        ("POST", "/users", {"name": "x", "password": "y"}),
        ("PUT", "/users/alice/password", {"password": "y"}),
        ("DELETE", "/users/alice", None),
        ("DELETE", "/tokens/any", None),
        ("PATCH", "/quotas", {"entity": {"user": "x"}, "values": {"producer_byte_rate": 1}}),
    ):
        refused = http.request(method, path, json=body, auth=VERA)
        assert (refused.status_code, refused.json()["error_code"]) == (403, 40302), (method, path)


def test_one_caller_cannot_take_all_consumers(http: httpx.Client) -> None:
    body = {"topics": ["orders"], "instance_id": "first"}
    assert http.post("/consumers/limited/subscribe", json=body).status_code == 200
    refused = http.post("/consumers/limited/subscribe", json={**body, "instance_id": "second"})
    assert refused.status_code == 429 and "alice has 1 open consumers" in refused.json()["message"]
    assert http.delete("/consumers/limited?instance_id=first").status_code == 204
    assert http.post("/consumers/limited/subscribe", json={**body, "instance_id": "second"}).status_code == 200
    assert http.delete("/consumers/limited?instance_id=second").status_code == 204


def test_a_broker_without_an_authorizer_says_so(call: Caller) -> None:
    refused = call("GET", "/acls/explain?principal=User:a&operation=read&resource_type=topic&resource_name=t")
    assert refused.status == 400 and "ACLs are off" in refused.json["message"]
    refused = call("GET", "/tokens")
    assert refused.status == 400 and "authenticated by SASL or TLS" in refused.json["message"]
