"""Callers act as themselves: basic credentials become SCRAM, on our broker and on Apache Kafka with its authorizer."""

import base64
import http.client
import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream.access.rules_file import parse_rules
from millstream.gateway.http.configuration import Limits
from millstream.gateway.server import Gateway, GatewayOptions
from millstream.raw_client import LATEST, Cluster, TopicPartition
from tests.integration.gateway.conftest import Caller, Response
from tests.integration.raw_client.kafka_with_security import SecuredKafka, secured_kafka, secured_millstream
from tests.waiting import TIMEOUT_SECONDS, until

pytestmark = pytest.mark.timeout(300)
_TOPIC, _GROUP = 2, 3
_READ, _WRITE, _CREATE, _DESCRIBE = 3, 4, 5, 8
RULES = """
[roles]
default = "none"
users = { alice = "admin", ann = "operator", bob = "viewer", dora = "viewer", nil = "admin" }
[[masks]]
topics = ["shared*"]
fields = ["value.card"]
visible_to = "admin"
"""


def basic(name: str, password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()}


ALICE, ANN, BOB = basic("alice", "wonder"), basic("ann", "ann-secret"), basic("bob", "bob-secret")


def allow(kafka: SecuredKafka, user: str, kind: int, name: str, operation: int) -> None:
    row = {
        "resource_type": kind,
        "resource_name": name,
        "resource_pattern_type": 3,
        "principal": f"User:{user}",
        "host": "*",
        "operation": operation,
        "permission_type": 3,
    }
    with Cluster(kafka.address("PLAINTEXT")) as cluster:
        response = cluster.call("create_acls", creations=[row])
        assert [each.error_code for each in response.results] == [0]


@pytest.fixture(scope="module", params=["millstream", pytest.param("apache", marks=pytest.mark.slow)])
def kafka(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredKafka]:
    start = secured_millstream if request.param == "millstream" else secured_kafka
    with start(tmp_path_factory.mktemp("kafka")) as running:
        for name, password in (
            ("alice", "wonder"),
            ("ann", "ann-secret"),
            ("bob", "bob-secret"),
            ("eve", "eve"),
            ("nil", "nil"),
        ):
            running.add_user(name, password)
        with Cluster(running.address("PLAINTEXT")) as cluster:
            for topic in ("mine", "shared"):
                cluster.create_topic(topic, 1, 1)
        for operation in (_READ, _WRITE, _DESCRIBE):
            allow(running, "ann", _TOPIC, "shared", operation)
        allow(running, "bob", _TOPIC, "shared", _READ)
        allow(running, "ann", _GROUP, "g-ann", _READ)
        yield running


@pytest.fixture(scope="module")
def through(kafka: SecuredKafka) -> Iterator[Gateway]:
    options = GatewayOptions(
        kafka.address("SASL"),
        settings={
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "alice",
            "sasl.password": "wonderland",
        },
        limits=Limits(identity_cache_s=1.0, max_callers=3),
        pass_through="SCRAM-SHA-256",
        rules=parse_rules(RULES),
    )
    with Gateway(options) as running:
        yield running


@pytest.fixture
def ask(through: Gateway) -> Caller:
    return Caller(through.address)


def produce(ask: Caller, topic: str, headers: dict[str, str]) -> Response:
    record = {"value": {"card": "4111-1111", "n": 1}}
    return ask("POST", f"/v1/topics/{topic}/produce", {"records": [record]}, headers)


def test_without_right_credentials_the_response_is_401(ask: Caller) -> None:
    for headers in ({}, basic("ann", "wrong"), basic("nobody", "x"), {"Authorization": "Bearer a.b.c"}):
        response = ask("GET", "/topics", headers=headers)
        assert response.status == 401, (headers, response.body)
        assert response.headers["www-authenticate"].startswith("Basic")
    assert ask("GET", "/livez").status == 200


def test_no_one_acts_for_someone_else(ask: Caller) -> None:
    claims = {"X-Forwarded-User": "alice", "X-Remote-User": "alice", "Proxy-Authorization": ALICE["Authorization"]}
    assert ask("GET", "/topics", headers=claims).status == 401
    names = [row["name"] for row in ask("GET", "/topics", headers=ANN | claims).json["topics"]]
    assert names == ["shared"]  # what ann may describe, not what alice may


def test_each_caller_sees_and_does_what_its_acls_allow(ask: Caller) -> None:
    assert {"mine", "shared"} <= {row["name"] for row in ask("GET", "/topics", headers=ALICE).json["topics"]}
    assert produce(ask, "shared", ANN).status == 200
    refused = produce(ask, "mine", ANN)
    assert (refused.status, refused.json["error_code"]) == (403, 40301)
    missing = refused.json["missing_acl"]
    assert missing["principal"] == "User:ann"
    assert (missing["operation"], missing["resource_type"], missing["resource_name"]) == ("Write", "topic", "mine")
    assert missing["command"] == "millstream acl add User:ann write --topic mine"
    assert ask("GET", "/topics/mine", headers=ANN).json["missing_acl"]["operation"] == "Describe"


def test_roles_are_checked_beside_the_acls(ask: Caller) -> None:
    assert produce(ask, "shared", BOB).json["error_code"] == 40302
    assert ask("POST", "/topics", {"name": "other"}, ANN).json["error_code"] == 40302
    assert ask("GET", "/topics", headers=basic("eve", "eve")).json["error_code"] == 40302  # no role at all


def test_consumers_belong_to_their_caller_and_see_masked_values(ask: Caller) -> None:
    assert produce(ask, "shared", ALICE).status == 200
    opened = ask("POST", "/consumers/g-ann/subscribe", {"topics": ["shared"], "instance_id": "one"}, ANN)
    assert opened.status == 200, opened.body
    found = ask("GET", "/consumers/g-ann/poll?timeout_ms=10000&format=json", headers=ANN).json["messages"]
    assert found and all(row["value"]["card"] == "***" and row["masked"] for row in found)
    assert ask("GET", "/consumers/g-ann?instance_id=one", headers=ALICE).status == 404
    assert ask("GET", "/consumers/g-ann/poll?instance_id=one", headers=ALICE).status == 404
    assert ask("DELETE", "/consumers/g-ann?instance_id=one", headers=ANN).status == 204


def test_acls_over_rest_v3(ask: Caller) -> None:
    cluster = ask("GET", "/v3/clusters", headers=ALICE).json["data"][0]["cluster_id"]
    acls = f"/v3/clusters/{cluster}/acls"
    one = {
        "resource_type": "TOPIC",
        "resource_name": "new-",
        "pattern_type": "PREFIXED",
        "principal": "User:ann",
        "host": "*",
        "operation": "READ",
        "permission": "ALLOW",
    }
    created = ask("POST", acls, one, ALICE)
    assert created.status == 201, created.body
    several = [one | {"operation": "WRITE"}, one | {"operation": "DESCRIBE", "permission": "DENY"}]
    assert ask("POST", acls + ":batch", {"data": several}, ALICE).status == 201
    found = ask("GET", acls + "?resource_name=new-&resource_type=topic", headers=ALICE).json
    assert found["kind"] == "KafkaAclList" and [row["operation"] for row in found["data"]] == [
        "READ",
        "WRITE",
        "DESCRIBE",
    ]
    assert found["data"][0].items() >= one.items()
    location = created.headers["location"]
    assert found["data"][0]["metadata"]["self"] == location
    (alone,) = ask("GET", location[location.index("/v3") :], headers=ALICE).json["data"]
    assert alone == found["data"][0]

    assert ask("DELETE", acls + "?resource_name=new-", headers=ALICE).status == 400
    everything = "?resource_type=ANY&pattern_type=ANY&operation=ANY&permission=ANY&resource_name=new-"
    deleted = ask("DELETE", acls + everything, headers=ALICE)
    assert deleted.status == 200 and len(deleted.json["data"]) == 3
    assert ask("GET", acls + "?resource_name=new-", headers=ALICE).json["data"] == []

    for wrong in ({"operation": "ANY"}, {"resource_type": "TABLE"}, {"principal": "ann"}, {"pattern_type": "MATCH"}):
        assert ask("POST", acls, one | wrong, ALICE).status == 400, wrong
    assert ask("POST", acls, one, ANN).status == 403
    assert ask("GET", acls, headers=ANN).json["missing_acl"]["resource_type"] == "cluster"


def test_two_callers_at_once_never_share_a_connection(ask: Caller) -> None:
    wrong: list[object] = []

    def repeat(headers: dict[str, str], expected: bool) -> None:
        for _ in range(15):
            names = {row["name"] for row in ask("GET", "/topics", headers=headers).json["topics"]}
            if ("mine" in names) is not expected:
                wrong.append((headers, names))

    threads = [threading.Thread(target=repeat, args=pair) for pair in ((ALICE, True), (ANN, False), (BOB, False))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_user_whose_password_changes_is_refused_after_the_cache_time(ask: Caller, kafka: SecuredKafka) -> None:
    kafka.add_user("bob", "new-secret")
    until(lambda: ask("GET", "/topics", headers=BOB).status == 401)
    assert ask("GET", "/topics", headers=basic("bob", "new-secret")).status == 200
    kafka.add_user("bob", "bob-secret")


def test_more_callers_than_the_pool_holds_take_turns(ask: Caller, kafka: SecuredKafka) -> None:
    for name in ("ann", "bob", "alice", "eve", "ann", "alice"):
        password = {"alice": "wonder", "eve": "eve"}.get(name, f"{name}-secret")
        assert ask("GET", "/topics", headers=basic(name, password)).status in (200, 403), name


def test_secrets_are_in_no_log(ask: Caller, caplog: pytest.LogCaptureFixture) -> None:
    ask("GET", "/topics", headers=basic("ann", "a-wrong-secret"))
    text = caplog.text
    assert "sign_in_failed" in text and "'ann'" in text
    assert "a-wrong-secret" not in text and "ann-secret" not in text


BODIES: dict[str, dict[str, object]] = {
    "{cluster_id}/topics": {"topic_name": "made-by-nil"},
    "/topics": {"name": "made-by-nil"},
    "/partitions": {"count": 3},
    "/configs": {"configs": {"retention.ms": "1"}},
    "groups/{group}/offsets": {"topic": "mine", "to": "earliest"},
    "/messages": {"value": "eA=="},
    "/batch": {"messages": [{"value": "eA=="}]},
    "/produce": {"records": [{"value": 1}]},
    "configs:alter": {"data": [{"name": "retention.ms", "value": "1"}]},
    "/{name}": {"value": "1"},
    "/{topic_name}": {"partitions_count": 3},
    "/records": {"value": {"type": "STRING", "data": "x"}},
    "records:batch": {"entries": [{"id": "1", "value": {"type": "STRING", "data": "x"}}]},
    "/subscribe": {"topics": ["mine"], "instance_id": "nil"},
}
OF_THE_REGISTRY = ("/schemas", "/contexts", "/subjects", "/compatibility", "/config", "/mode")
OF_EVERYBODY = {"/", "/livez", "/readyz", "/metrics", "/openapi.json", "/docs", "/cluster", "/consumers"}


def _topics(cluster: Cluster) -> set[str]:
    """Without those that a broker makes by itself, such as the reports of hot keys."""
    return {name for name in cluster.topics() if not name.startswith("__")}


def test_by_no_route_anything_is_done_or_shown_without_an_acl(ask: Caller, kafka: SecuredKafka) -> None:
    """A caller with the highest role of the gateway, which the cluster gives no right at all."""
    nil = basic("nil", "nil")
    assert produce(ask, "mine", ALICE).status == 200
    with Cluster(kafka.address("PLAINTEXT")) as cluster:
        cluster.commit_offsets("g-secret", {TopicPartition("mine", 0): 1})
        before = _topics(cluster)
    cluster_id = ask("GET", "/v3/clusters", headers=ALICE).json["data"][0]["cluster_id"]
    names = {"cluster_id": cluster_id, "topic": "mine", "topic_name": "mine", "broker_id": "1", "partition_id": "0"}
    names |= {"group": "g-secret", "consumer_group_id": "g-secret", "name": "retention.ms", "consumer_id": "x"}
    paths: dict[str, dict[str, object]] = ask("GET", "/openapi.json", headers=nil).json["paths"]
    refused, shown, other = set(), set(), {}
    for path, methods in paths.items():
        if path.startswith(OF_THE_REGISTRY) or path in OF_EVERYBODY:
            continue
        for method in set(methods) & {"get", "post", "put", "patch", "delete"}:
            if (method, path) == ("post", "/consumers/{group}"):
                continue  # below
            place = re.sub(r"\{([^}]*)\}", lambda found: names.get(found[1], "x"), path)
            body = next((each for end, each in BODIES.items() if path.endswith(end)), {}) if method != "get" else None
            response = ask(method.upper(), place, body, nil)
            if response.status < 300 and method == "get":
                assert b"mine" not in response.body.replace(place.encode(), b""), (path, response.body)
                assert b"g-secret" not in response.body.replace(place.encode(), b""), (path, response.body)
                shown.add(path)
            elif b"missing_acl" in response.body:
                assert response.status in (200, 403)  # 200: the status of a stream of records; its line has the error
                refused.add((method, path))
            else:
                other[method, path] = (response.status, response.body)
    assert len(refused) > 50, refused
    assert all(not re.search(r"\{(topic|group|consumer_group)", path) for path in shown), (
        "lists, and what describes the cluster"
    )
    # An instance of REST v2 is made without a request to the cluster. Nothing can be read with it.
    instance = ask("POST", "/consumers/g-secret", {}, nil).json["instance_id"]
    place, v2 = f"/consumers/g-secret/instances/{instance}", {"Content-Type": "application/vnd.kafka.v2+json", **nil}
    subscription = ask("POST", f"{place}/subscription", {"topics": ["mine"]}, v2)
    assert subscription.status == 403 and b"missing_acl" in subscription.body, subscription.body
    read = ask("GET", f"{place}/records", None, {"Accept": "application/vnd.kafka.binary.v2+json", **nil})
    assert read.status == 409, read.body
    # The rest: consumers that were not opened, and bodies that were refused before the cluster was asked.
    odd = {route: found for route, found in other.items() if not 400 <= found[0] < 500 or b"4111" in found[1]}
    assert odd == {}
    with Cluster(kafka.address("PLAINTEXT")) as cluster:
        assert _topics(cluster) == before, "nothing was made or deleted"
        end = cluster.offsets({TopicPartition("mine", 0): LATEST})[TopicPartition("mine", 0)].offset
        assert end == 1, "nothing was written"
        assert cluster.committed_offsets("g-secret", [TopicPartition("mine", 0)]) == {TopicPartition("mine", 0): 1}


def test_a_query_reads_with_the_rights_and_the_masks_of_its_caller(ask: Caller, kafka: SecuredKafka) -> None:
    assert produce(ask, "shared", ANN).status == 200
    query = {"query": "select distinct n, card from shared"}
    allowed = ask("POST", "/v1/sql", query, ANN)
    assert allowed.status == 200 and allowed.json["rows"] and b"4111" not in allowed.body, allowed.body
    kafka.add_user("dora", "dora")
    allow(kafka, "dora", _TOPIC, "shared", _DESCRIBE)
    for path in ("/v1/sql", "/v1/sql/pipeline"):
        only_described = ask("POST", path, query, basic("dora", "dora"))
        assert only_described.status == 403, only_described.body
        assert only_described.json["missing_acl"]["operation"] == "Read", only_described.body
        unseen = ask("POST", path, {"query": "select * from mine"}, basic("nil", "nil"))
        assert unseen.status == 422 and "there is no topic 'mine'" in unseen.json["message"], unseen.body


def test_an_open_stream_ends_when_its_user_is_refused(ask: Caller, kafka: SecuredKafka) -> None:
    assert produce(ask, "shared", ANN).status == 200
    connection = http.client.HTTPConnection(ask.address, timeout=TIMEOUT_SECONDS)
    connection.request("GET", "/topics/shared/stream?from=earliest", headers=BOB)
    stream = connection.getresponse()
    assert stream.status == 200
    kafka.add_user("bob", "another-secret")
    try:
        lines = b""
        while line := stream.readline():  # it ends by itself
            lines += line
        assert b"revoked" in lines, lines[-500:]
    finally:
        kafka.add_user("bob", "bob-secret")
        connection.close()


def test_world_readable_credentials_are_refused(tmp_path: Path) -> None:
    from millstream.cli.gateway_process import named_credentials
    from millstream.gateway.http.configuration import GatewayError

    file = tmp_path / "people"
    file.write_text("basic ann:x\n")
    file.chmod(0o644)
    with pytest.raises(GatewayError, match="chmod 600"):
        named_credentials(str(file))
    file.chmod(0o600)
    assert named_credentials(str(file))


def test_secrets_of_the_access_file_may_be_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from millstream.cli.gateway_process import named_rules
    from millstream.gateway.http.configuration import GatewayError

    (tmp_path / "password").write_text("of-a-file\n")
    monkeypatch.setenv("OIDC_SECRET", "of-the-environment")
    file = tmp_path / "access.toml"
    file.write_text(
        '[oidc]\nissuer = "https://i.example"\nclient_id = "c"\nclient_secret = "${env:OIDC_SECRET}"\n'
        f'[[certificates]]\nsubject = "CN=a"\nusername = "a"\npassword = "${{file:{tmp_path}/password}}"\n'
    )
    file.chmod(0o600)
    rules = named_rules(str(file))
    assert rules.oidc is not None and rules.oidc.client_secret == "of-the-environment"
    assert rules.certificates[0].password == "of-a-file"
    monkeypatch.delenv("OIDC_SECRET")
    with pytest.raises(GatewayError, match=r"oidc.client_secret: .*OIDC_SECRET"):
        named_rules(str(file))


def test_the_gateway_records_refusals_and_changes(ask: Caller, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "millstream.gateway.audit")
    ask("GET", "/topics", headers=basic("ann", "wrong-secret"))
    ask("GET", "/topics", headers=basic("eve", "eve"))
    ask("POST", "/topics", {"name": "x"}, ANN)
    produce(ask, "mine", ANN)
    assert produce(ask, "shared", ANN).status == 200  # data: not recorded
    assert ask("POST", "/topics", {"name": "audited", "partitions": 1}, ALICE).status == 201
    ask("DELETE", "/topics/audited", headers=ALICE)
    ask("DELETE", "/topics/audited", headers=ALICE)
    rows = [json.loads(each.message.removeprefix("audit ")) for each in caplog.records if each.name.endswith("audit")]
    found = [(row["kind"], row["result"], row["principal"], row.get("api", "")) for row in rows]
    assert found == [
        ("authentication", "failure", "User:ann", ""),
        ("authorization", "denied", "User:eve", ""),
        ("authorization", "denied", "User:ann", "POST /topics"),
        ("authorization", "denied", "User:ann", "POST /v1/topics/{topic}/produce"),
        ("administration", "success", "User:alice", "POST /topics"),
        ("administration", "success", "User:alice", "DELETE /topics/{topic}"),
        ("administration", "failure", "User:alice", "DELETE /topics/{topic}"),
    ]
    assert {row["address"] for row in rows} == {"127.0.0.1"} and rows[-1]["error"] == 40403
    assert "secret" not in caplog.text and "4111" not in caplog.text


def test_a_branch_needs_read_on_the_parent_and_create_on_its_name(
    ask: Caller, kafka: SecuredKafka, request: pytest.FixtureRequest
) -> None:
    if request.node.callspec.params["kafka"] == "apache":
        pytest.skip("Apache Kafka has no branches")
    create = [(name, _CREATE) for name in ("branch-of-mine", "branch-of-shared")]
    for name, operation in (*create, ("mine", _DESCRIBE), ("shared", _READ), ("branch-of-shared", _DESCRIBE)):
        allow(kafka, "nil", _TOPIC, name, operation)

    def branch(parent: str, name: str, headers: dict[str, str]) -> Response:
        return ask("POST", f"/topics/{parent}/branches", {"name": name}, headers)

    nil = basic("nil", "nil")
    for parent, name in (("mine", "branch-of-mine"), ("shared", "other")):
        refused = branch(parent, name, nil)
        assert (refused.status, refused.json["error_code"]) == (403, 40301), refused.body
    assert branch("shared", "branch-of-shared", ANN).json["error_code"] == 40302, "it needs the role admin"
    made = branch("shared", "branch-of-shared", nil)
    assert made.status == 201, made.body
