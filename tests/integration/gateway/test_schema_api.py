"""The registry's API over HTTP: paths, responses, and Confluent's error codes."""

import json
from typing import Any
from urllib.parse import quote

import pytest

from tests.integration.gateway.conftest import Caller

pytestmark = pytest.mark.timeout(300)


def record(*fields: str, name: str = "R") -> dict[str, Any]:
    rows = [{"name": field, "type": "int", "default": 0} for field in fields]
    return {"schema": json.dumps({"type": "record", "name": name, "fields": rows})}


def strict(*fields: str) -> dict[str, Any]:
    rows = [{"name": field, "type": "int"} for field in fields]
    return {"schema": json.dumps({"type": "record", "name": "R", "fields": rows})}


def test_a_subject_is_registered_read_and_deleted(call: Caller) -> None:
    assert call("POST", "/subjects/life/versions", strict("a")).status == 200
    first = call("POST", "/subjects/life/versions", strict("a")).json["id"]
    second = call("POST", "/subjects/life/versions", record("a", "b")).json["id"]
    assert call("GET", "/subjects/life/versions").json == [1, 2]
    assert call("GET", "/subjects/life/versions?offset=1&limit=5").json == [2]
    latest = call("GET", "/subjects/life/versions/latest").json
    assert (latest["id"], latest["version"], latest["subject"]) == (second, 2, "life")
    assert call("GET", "/subjects/life/versions/-1").json == latest
    assert call("GET", "/subjects/life/versions/1/schema").json == json.loads(strict("a")["schema"])
    assert call("GET", f"/schemas/ids/{first}/schema").json == json.loads(strict("a")["schema"])
    assert call("GET", f"/schemas/ids/{first}/subjects").json == ["life"]
    assert call("GET", f"/schemas/ids/{first}/versions").json == [{"subject": "life", "version": 1}]
    assert call("GET", f"/schemas/ids/{first}?fetchMaxId=true").json["maxId"] >= second
    assert call("POST", "/subjects/life", strict("a")).json["version"] == 1
    assert [row["version"] for row in call("GET", "/schemas?subjectPrefix=life").json] == [1, 2]
    assert [row["version"] for row in call("GET", "/schemas?subjectPrefix=life&latestOnly=true").json] == [2]
    assert "life" in call("GET", "/subjects?subjectPrefix=li").json

    assert call("DELETE", "/subjects/life/versions/1?permanent=true").code == 40407
    assert call("DELETE", "/subjects/life/versions/1").json == 1
    assert call("DELETE", "/subjects/life/versions/1").code == 40406
    assert call("GET", "/subjects/life/versions/1").code == 40402
    assert call("GET", "/subjects/life/versions/1?deleted=true").json["deleted"] is True
    assert call("GET", "/subjects/life/versions?deleted=true").json == [1, 2]
    assert call("GET", "/subjects/life/versions?deletedOnly=true").json == [1]
    assert call("DELETE", "/subjects/life/versions/1?permanent=true").json == 1
    assert call("DELETE", "/subjects/life?permanent=true").code == 40405
    assert call("DELETE", "/subjects/life").json == [2]
    assert call("DELETE", "/subjects/life").code == 40404
    assert call("GET", "/subjects/life/versions").code == 40401
    assert call("DELETE", "/subjects/life?permanent=true").json == [2]
    assert call("DELETE", "/subjects/life").code == 40401
    assert call("GET", f"/schemas/ids/{first}").code == 40403


def test_what_is_missing_has_its_code(call: Caller) -> None:
    call("POST", "/subjects/there/versions", strict("a"))
    assert call("GET", "/subjects/nowhere/versions").code == 40401
    assert call("GET", "/subjects/nowhere/versions/1").code == 40401
    assert call("GET", "/subjects/there/versions/9").code == 40402
    assert call("GET", "/subjects/there/versions/9/referencedby").code == 40402
    assert call("GET", "/schemas/ids/987654").code == 40403
    assert call("POST", "/subjects/there", strict("zzz")).code == 40403
    assert call("POST", "/subjects/nowhere", strict("a")).code == 40401
    assert call("GET", "/config/nowhere").code == 40408
    assert call("GET", "/mode/nowhere").code == 40409
    assert call("POST", "/compatibility/subjects/there/versions/9", strict("a")).code == 40402
    assert call("POST", "/compatibility/subjects/nowhere/versions/latest", strict("a")).json == {"is_compatible": True}


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"schema": "{"}, "not JSON"),
        ({"schema": '{"type":"record","name":"R"}'}, "fields"),
        ({"schema": '{"type":"record","name":"R","fields":[{"name":"a","type":"Nope"}]}'}, "Nope"),
        ({"schema": ""}, "empty"),
        ({}, "field 'schema'"),
        ({"schema": {"type": "string"}}, "at '$.schema'"),
        ({"schema": '"int"', "schemaType": "AVRO2"}, "did you mean AVRO"),
        ({"schema": '"int"', "references": [{"name": "x"}]}, "subject"),
        ({"schema": '"X"', "references": [{"name": "X", "subject": "nowhere", "version": 1}]}, "register it first"),
        ({"schema": '{"type":"objekt"}', "schemaType": "JSON"}, "/type"),
        ({"schema": '{"$ref":"other.json"}', "schemaType": "JSON"}, "add a reference"),
        ({"schema": 'syntax = "proto3"; message M { int32 a = ; }', "schemaType": "PROTOBUF"}, "default.proto:1:"),
        ({"schema": 'syntax = "proto3"; import "x.proto";', "schemaType": "PROTOBUF"}, "x.proto"),
    ],
)
def test_a_schema_that_is_not_valid_is_refused_with_the_reason(call: Caller, body: dict[str, Any], says: str) -> None:
    response = call("POST", "/subjects/bad/versions", body)
    assert (response.status, response.code) == (422, 42201)
    assert says in response.json["message"]


def test_wrong_versions_are_refused(call: Caller) -> None:
    for version in ("0", "-2", "first", "1.5", "99999999999"):
        assert call("GET", f"/subjects/any/versions/{version}").code == 42202


def test_compatibility_of_one_version_and_of_all(call: Caller) -> None:
    call("PUT", "/config/compat", {"compatibility": "NONE"})
    call("POST", "/subjects/compat/versions", strict("a"))
    call("POST", "/subjects/compat/versions", strict("a", "b"))
    call("PUT", "/config/compat", {"compatibility": "BACKWARD_TRANSITIVE"})
    path = "/compatibility/subjects/compat/versions"
    assert call("POST", f"{path}/latest", strict("a", "b")).json == {"is_compatible": True}
    assert call("POST", f"{path}/1", strict("a", "b")).json == {"is_compatible": False}
    verdict = call("POST", f"{path}?verbose=true", strict("a", "b")).json
    assert verdict["is_compatible"] is False
    assert "/fields/1" in verdict["messages"][0] and "give it one" in verdict["messages"][0]
    assert "version 1" in verdict["messages"][-1]
    call("PUT", "/config/compat", {"compatibility": "BACKWARD"})
    assert call("POST", path, strict("a", "b")).json == {"is_compatible": True}
    other = {"schema": '{"type":"object"}', "schemaType": "JSON"}
    assert "use another subject" in call("POST", f"{path}?verbose=true", other).json["messages"][0]


def test_the_compatibility_level_is_read_and_changed(call: Caller) -> None:
    assert call("GET", "/config").json == {"compatibilityLevel": "BACKWARD"}
    assert call("GET", "/config/cfg?defaultToGlobal=true").json == {"compatibilityLevel": "BACKWARD"}
    assert call("PUT", "/config/cfg", {"compatibility": "full"}).json == {"compatibility": "full"}
    assert call("GET", "/config/cfg").json == {"compatibilityLevel": "FULL"}
    assert call("DELETE", "/config/cfg").json == {"compatibilityLevel": "FULL"}
    assert call("DELETE", "/config/cfg").code == 40401
    refused = call("PUT", "/config", {"compatibility": "BACKWRD"})
    assert refused.code == 42203 and "did you mean BACKWARD?" in refused.json["message"]
    assert call("PUT", "/config", {"compatibilty": "NONE"}).code == 42203
    assert call("PUT", "/config", {}).code == 42203


def test_normalized_schemas_have_one_id(call: Caller) -> None:
    schema = {"type": "record", "name": "N", "fields": [], "zeta": 1, "alpha": 2}
    other = {"type": "record", "name": "N", "fields": [], "alpha": 2, "zeta": 1}
    body, turned = {"schema": json.dumps(schema)}, {"schema": json.dumps(other)}
    first = call("POST", "/subjects/normal/versions?normalize=true", body).json["id"]
    assert call("POST", "/subjects/normal/versions?normalize=true", turned).json["id"] == first
    assert call("POST", "/subjects/normal?normalize=true", turned).json["version"] == 1
    call("PUT", "/config/normal", {"normalize": True, "compatibility": "NONE"})
    assert call("GET", "/config/normal").json == {"compatibilityLevel": "NONE", "normalize": True}
    assert call("POST", "/subjects/normal/versions", turned).json["id"] == first


def test_schemas_are_imported_in_import_mode_only(call: Caller) -> None:
    assert call("GET", "/mode").json == {"mode": "READWRITE"}
    assert call("POST", "/subjects/imp/versions", {**strict("a"), "id": 4711}).code == 42205
    assert call("PUT", "/mode/imp", {"mode": "IMPORT"}).json == {"mode": "IMPORT"}
    assert call("POST", "/subjects/imp/versions", strict("a")).code == 42205
    assert call("POST", "/subjects/imp/versions", {**strict("imp"), "id": 4711, "version": 5}).json == {"id": 4711}
    assert call("POST", "/subjects/imp/versions", {**strict("other"), "id": 4711, "version": 6}).code == 42207
    assert call("GET", "/subjects/imp/versions/5").json["id"] == 4711
    assert call("PUT", "/mode/imp", {"mode": "READONLY"}).json == {"mode": "READONLY"}
    assert call("PUT", "/mode/imp", {"mode": "IMPORT"}).code == 42205, "there is something already"
    assert call("PUT", "/mode/imp?force=true", {"mode": "IMPORT"}).json == {"mode": "IMPORT"}
    assert call("DELETE", "/mode/imp").json == {"mode": "IMPORT"}
    assert call("GET", "/mode/imp?defaultToGlobal=true").json == {"mode": "READWRITE"}
    refused = call("PUT", "/mode/imp", {"mode": "WRITABLE"})
    assert refused.code == 42204 and "READWRITE" in refused.json["message"]
    assert call("POST", "/subjects/after/versions", strict("after")).json["id"] > 4711


def test_a_referenced_schema_cannot_be_deleted(call: Caller) -> None:
    call("POST", "/subjects/user/versions", record(name="User"))
    uses = {"type": "record", "name": "G", "fields": [{"name": "owner", "type": "User"}]}
    body = {"schema": json.dumps(uses), "references": [{"name": "User", "subject": "user", "version": 1}]}
    using = call("POST", "/subjects/group/versions", body).json["id"]
    assert call("GET", "/subjects/user/versions/1/referencedby").json == [using]
    assert call("GET", f"/schemas/ids/{using}").json["references"] == body["references"]
    resolved = json.loads(call("GET", f"/schemas/ids/{using}?format=resolved").json["schema"])
    assert resolved["fields"][0]["type"]["name"] == "User"
    mixed = {"schema": '{"$ref":"User"}', "schemaType": "JSON", "references": body["references"]}
    assert "of type AVRO" in call("POST", "/subjects/mixed/versions", mixed).json["message"]
    assert call("DELETE", "/subjects/user").code == 42206
    assert call("DELETE", "/subjects/user/versions/1").code == 42206
    call("DELETE", "/subjects/group")
    assert call("DELETE", "/subjects/user").json == [1]
    assert call("GET", f"/schemas/ids/{using}?format=nonsense").status == 422


def test_json_schemas_that_refer_to_each_other(call: Caller) -> None:
    money = {"schema": '{"type":"object","properties":{"cents":{"type":"integer"}}}', "schemaType": "JSON"}
    call("POST", "/subjects/money/versions", money)
    order: dict[str, Any] = {
        "schema": '{"type":"object","properties":{"total":{"$ref":"money.json"}},"additionalProperties":false}',
        "schemaType": "JSON",
        "references": [{"name": "money.json", "subject": "money", "version": 1}],
    }
    assert call("POST", "/subjects/json-order/versions", order).status == 200
    changed = {**order, "schema": order["schema"].replace('{"$ref":"money.json"}', '{"type":"string"}')}
    refused = call("POST", "/subjects/json-order/versions", changed)
    assert refused.code == 409 and "/properties/total" in refused.json["message"]


def test_protobuf_as_text_and_serialized(call: Caller) -> None:
    text = 'syntax="proto3"; package p; message M { /* a */ int32 a=1; }'
    schema_id = call("POST", "/subjects/proto/versions", {"schema": text, "schemaType": "PROTOBUF"}).json["id"]
    stored = call("GET", f"/schemas/ids/{schema_id}").json
    assert stored["schemaType"] == "PROTOBUF"
    assert stored["schema"] == 'syntax = "proto3";\npackage p;\n\nmessage M {\n  int32 a = 1;\n}\n'
    serialized = call("GET", f"/schemas/ids/{schema_id}?format=serialized").json["schema"]
    again = {"schema": serialized, "schemaType": "PROTOBUF"}
    assert call("POST", "/subjects/proto", again).json["id"] == schema_id


def test_contexts_have_subjects_of_their_own(call: Caller) -> None:
    assert call("POST", "/contexts/.lab/subjects/ctx/versions", strict("lab")).json == {"id": 1}
    assert call("GET", "/subjects/:.lab:ctx/versions").json == [1]
    assert call("GET", "/contexts/.lab/subjects").json == [":.lab:ctx"]
    assert call("GET", "/contexts/lab/schemas/ids/1").json["schema"] == json.dumps(
        json.loads(strict("lab")["schema"]), separators=(",", ":")
    )
    assert ".lab" in call("GET", "/contexts").json
    call("PUT", "/contexts/.lab/config", {"compatibility": "NONE"})
    assert call("GET", "/config/:.lab:ctx?defaultToGlobal=true").json == {"compatibilityLevel": "NONE"}
    assert call("GET", "/config/:.lab:").json == {"compatibilityLevel": "NONE"}
    assert call("GET", "/config").json == {"compatibilityLevel": "BACKWARD"}
    assert call("POST", "/contexts/.lab/compatibility/subjects/ctx/versions/1", strict("x")).json["is_compatible"]
    assert ":.lab:ctx" in call("GET", "/subjects").json


@pytest.mark.parametrize("subject", ["with/slash", "ü & co", "a b", "per%cent", "%2F", "dots.and-dashes", "a:b"])
def test_any_name_can_be_a_subject(call: Caller, subject: str) -> None:
    path = f"/subjects/{quote(subject, safe='')}/versions"
    assert call("POST", path, strict("a")).status == 200
    assert call("GET", f"{path}/latest").json["subject"] == subject
    assert subject in call("GET", "/subjects").json


def test_wrong_names_of_subjects_are_refused(call: Caller) -> None:
    assert call("POST", "/subjects/__GLOBAL/versions", strict("a")).code == 42208
    assert call("POST", "/subjects/a%00b/versions", strict("a")).code == 42208
    assert call("POST", "/subjects/:.lab:/versions", strict("a")).code == 42208


def test_metadata_and_rules_are_kept(call: Caller) -> None:
    body = {**strict("meta"), "metadata": {"properties": {"owner": "me"}}, "ruleSet": {"domainRules": []}}
    schema_id = call("POST", "/subjects/meta/versions", body).json["id"]
    assert call("POST", "/subjects/meta/versions", strict("meta")).json["id"] != schema_id, "they are part of it"
    found = call("GET", "/subjects/meta/metadata?key=owner&value=me").json
    assert (found["id"], found["metadata"]) == (schema_id, body["metadata"])
    assert call("GET", "/subjects/meta/metadata?key=owner&value=you").code == 40403


def test_the_three_schema_types_are_listed(call: Caller) -> None:
    assert call("GET", "/schemas/types").json == ["JSON", "PROTOBUF", "AVRO"]


def test_identity_and_version_of_the_registry(call: Caller) -> None:
    scope = call("GET", "/v1/metadata/id").json["scope"]
    assert scope["path"] == [] and scope["clusters"]["kafka-cluster"] == call("GET", "/cluster").json["cluster_id"]
    assert call("GET", "/v1/metadata/version").json["version"]


def test_an_unknown_compatibility_level_is_named_as_confluent_names_it(call: Caller) -> None:
    response = call("PUT", "/config", {"compatibility": "SIDEWAYS"})
    assert response.code == 42203 and response.json["message"].startswith("Invalid compatibility level")
