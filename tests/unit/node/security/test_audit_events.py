"""Documents of audit events: what they have, and what they hide."""

import json

import pytest

from millstream.formats.protocol.schema import Message, request_schema
from millstream.node.security.core.audit_events import HIDDEN, encoded, errors_of, event, request_document, result_of
from millstream.node.server.auditing import ADMINISTRATION
from millstream.node.server.service import Peer

SECRET = "hunter2"


def request(api: str, **fields: object) -> Message:
    schema = request_schema(api)
    version = schema.versions.high
    return schema.decode(schema.encode(fields, version), version)


def test_an_event_has_all_fields() -> None:
    peer = Peer("10.0.0.1", 5, "CLIENT", client_id="tool")
    document = event("authentication", "failure", peer, 3, 1234, mechanism="PLAIN", name="", reason="no")
    assert json.loads(encoded(document)) == {
        "version": 1,
        "time_ms": 1234,
        "node": 3,
        "kind": "authentication",
        "result": "failure",
        "principal": "User:ANONYMOUS",
        "address": "10.0.0.1",
        "listener": "CLIENT",
        "client_id": "tool",
        "mechanism": "PLAIN",
        "reason": "no",
    }


def test_credentials_are_hidden() -> None:
    row = {"name": "bob", "mechanism": 1, "iterations": 4096, "salt": b"salt", "salted_password": SECRET.encode()}
    document = request_document(request("alter_user_scram_credentials", deletions=[], upsertions=[row]))
    (shown,) = document["upsertions"]
    assert (shown["name"], shown["salt"], shown["salted_password"]) == ("bob", HIDDEN, HIDDEN)
    token = request_document(request("renew_delegation_token", hmac=SECRET.encode(), renew_period_ms=5))
    assert token == {"hmac": HIDDEN, "renew_period_ms": 5}


@pytest.mark.parametrize(
    ("name", "is_hidden"),
    [
        ("ssl.key.password", True),
        ("listener.name.client.scram-sha-512.sasl.jaas.config", True),
        ("not.a.known.setting", True),
        ("retention.ms", False),
        ("log.retention.ms", False),
    ],
)
def test_settings_that_are_secret_or_unknown_are_hidden(name: str, is_hidden: bool) -> None:
    config = {"name": name, "config_operation": 0, "value": SECRET}
    resource = {"resource_type": 4, "resource_name": "1", "configs": [config]}
    text = json.dumps(request_document(request("incremental_alter_configs", resources=[resource], validate_only=False)))
    assert (SECRET in text) is not is_hidden
    assert name in text


def test_long_requests_are_cut() -> None:
    topics = [{"name": f"t{number}", "num_partitions": 1, "replication_factor": 1} for number in range(500)]
    document = request_document(request("create_topics", topics=topics, timeout_ms=1))
    assert len(document["topics"]) == 101
    assert document["topics"][-1] == "… 500 in all"


def test_results_are_taken_from_the_errors_of_a_response() -> None:
    response = {"topics": [{"name": "a", "error_code": 0}, {"name": "b", "error_code": 36}]}
    assert errors_of(response) == [{"name": "b", "error": "TOPIC_ALREADY_EXISTS"}]
    assert result_of(errors_of(response)) == "failure"
    denied = {"topics": [{"name": "b", "error_code": 29}]}
    assert result_of(errors_of(denied)) == "denied"
    assert result_of([]) == "success"


def test_the_audited_apis_exist() -> None:
    for api in ADMINISTRATION:
        request_schema(api)
