"""The texts in which schemas are stored: the same for the same schema, and complete."""

import base64
import json
from typing import Any

import pytest
from google.protobuf import descriptor_pb2

from millstream.registry.formats import Dependency, InvalidSchemaError
from millstream.registry.registering import FORMATS

AVRO, JSON, PROTOBUF = FORMATS["AVRO"], FORMATS["JSON"], FORMATS["PROTOBUF"]

EVERYTHING = r"""
syntax = "proto3";
package shop.v1;
import "google/protobuf/timestamp.proto";
import public "money.proto";
option java_package = "a.\"b\"";
/* A comment. */
message Order {
  reserved 4, 6 to 9, 1000 to max;
  reserved "gone";
  string id = 1; // another
  optional int32 count = 2 [deprecated = true];
  map<string, Item> items = 3;
  oneof payment { string card = 10; int64 cash = 11 [json_name = "Kash"]; }
  repeated google.protobuf.Timestamp at = 12;
  message Item { Kind kind = 1; enum Kind { A = 0; B = -1; } }
  money.Money total = 13;
}
enum Colour { option allow_alias = true; RED = 0; ROT = 0; reserved 5 to max; }
service Orders { rpc Get(Order) returns (stream Order) { option deprecated = true; } }
"""
MONEY = Dependency("money.proto", 'syntax = "proto3"; package money; message Money { int64 cents = 1; }')

PROTO_2 = r"""
syntax = "proto2";
import "google/protobuf/descriptor.proto";
extend google.protobuf.FieldOptions { optional string note = 50001; optional Hint hint = 50002; }
message Hint { optional int32 a = 1; repeated string b = 2; }
message M {
  extensions 100 to 200;
  required int32 a = 1 [default = 5, (note) = "hi", (hint) = {a: 3 b: "x" b: "y"}];
  optional string s = 2 [default = "q\"\n"];
  optional double d = 3 [default = -inf];
  optional bytes y = 4 [default = "\001\377"];
}
extend M { optional int32 e = 101; }
"""
GROUPS = """
syntax = "proto2";
package p;
message M {
  extensions 100 to 200;
  message Before {}
  repeated group Item = 1 [deprecated = true] { required int32 a = 1; message Within {} optional group Deep = 2 {} }
  message Between {}
  oneof choice { group Pick = 7 { optional string s = 1; } int32 n = 8; }
  message After {}
}
extend M { optional group Extra = 101 { optional int32 q = 1; } }
message Last { extend M { optional group Inner = 102 { optional M m = 1; } } }
extend M { optional int32 plain = 103; }
"""
DELIMITED = (
    'edition = "2023"; message M { message A { int32 x = 1; } A a = 1 [features.message_encoding = DELIMITED]; }'
)
EDITION = 'edition = "2023"; message M { int32 a = 1 [features.field_presence = IMPLICIT]; reserved foo; }'
CONFLUENTS = (
    'syntax = "proto3"; import "confluent/meta.proto"; message M { int32 a = 1 [(confluent.field_meta).doc = "x"]; }'
)
BUILT_IN = (
    'syntax = "proto3"; import "google/type/money.proto"; import "google/type/postal_address.proto"; '
    'import "confluent/type/decimal.proto"; '
    "message M { google.type.Money price = 1; google.type.PostalAddress to = 2; confluent.type.Decimal rate = 3; }"
)


@pytest.mark.parametrize(
    ("text", "dependencies"),
    [
        (EVERYTHING, [MONEY]),
        (PROTO_2, []),
        (GROUPS, []),
        (EDITION, []),
        (DELIMITED, []),
        (CONFLUENTS, []),
        (BUILT_IN, []),
    ],
    ids=["proto3", "proto2", "groups", "editions", "delimited messages", "confluent's options", "built-in imports"],
)
def test_protobuf_text_is_complete(text: str, dependencies: list[Dependency]) -> None:
    schema = PROTOBUF.parse(text, dependencies)
    again = PROTOBUF.parse(schema.canonical, dependencies)
    assert again.canonical == schema.canonical
    assert again.rendered("serialized") == schema.rendered("serialized"), "nothing is lost on the way"
    assert PROTOBUF.parse(schema.rendered("serialized"), dependencies).canonical == schema.canonical
    assert "comment" not in schema.canonical


def test_a_group_that_no_text_can_say_is_refused() -> None:
    content = descriptor_pb2.FileDescriptorProto.FromString(
        base64.b64decode(PROTOBUF.parse(GROUPS, []).rendered("serialized"))
    )
    content.message_type[0].field[0].name = "other"
    with pytest.raises(InvalidSchemaError, match="group 'other'"):
        PROTOBUF.parse(base64.b64encode(content.SerializeToString()).decode(), [])


def test_protobuf_imports_as_descriptors() -> None:
    serialized = Dependency("money.proto", PROTOBUF.parse(MONEY.text, []).rendered("serialized"))
    schema = PROTOBUF.parse(EVERYTHING, [serialized])
    assert ".money.Money total = 13;" in schema.canonical
    assert PROTOBUF.parse(schema.rendered("serialized"), [MONEY]).canonical == schema.canonical


def test_protobuf_that_would_write_elsewhere() -> None:
    for name in ("../evil.proto", "/tmp/evil.proto"):
        with pytest.raises(InvalidSchemaError, match="not a valid file name"):
            PROTOBUF.parse('syntax = "proto3";', [Dependency(name, 'syntax = "proto3";')])


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        ({"type": "string"}, '"string"'),
        ({"type": "string", "avro.java.string": "String"}, '{"type":"string","avro.java.string":"String"}'),
        (
            {"fields": [{"type": "int", "name": "a", "doc": "d", "default": 1}], "name": "R", "type": "record"},
            '{"type":"record","name":"R","fields":[{"name":"a","type":"int","doc":"d","default":1}]}',
        ),
        (
            {"type": "record", "name": "one.two.R", "doc": "x", "aliases": ["Q", "z.P"], "fields": []},
            '{"type":"record","name":"R","namespace":"one.two","doc":"x","fields":[],"aliases":["Q","z.P"]}',
        ),
        (
            {
                "type": "record", "name": "R", "namespace": "n", "fields": [
                    {"name": "a", "type": {"type": "enum", "name": "E", "namespace": "n", "symbols": ["X"]}},
                    {"name": "b", "type": "n.E"},
                    {"name": "c", "type": ["null", {"type": "fixed", "name": "F", "namespace": "m", "size": 2}, "R"]},
                    {"name": "d", "type": "m.F", "order": "ignore"},
                ],
            },
            '{"type":"record","name":"R","namespace":"n","fields":['
            '{"name":"a","type":{"type":"enum","name":"E","symbols":["X"]}},{"name":"b","type":"E"},'
            '{"name":"c","type":["null",{"type":"fixed","name":"F","namespace":"m","size":2},"R"]},'
            '{"name":"d","type":"m.F","order":"ignore"}]}',
        ),
    ],
)  # fmt: skip
def test_avro_as_java_writes_it(given: Any, stored: str) -> None:
    assert AVRO.parse(json.dumps(given, indent=2), []).canonical == stored
    assert AVRO.parse(stored, []).canonical == stored


def test_avro_aliases_are_names() -> None:
    for aliases in ([["x"]], "x", {"a": 1}, None):
        with pytest.raises(InvalidSchemaError, match="list of names"):
            AVRO.parse(json.dumps({"type": "record", "name": "R", "aliases": aliases, "fields": []}), [])


def test_a_bare_name_is_avro_too() -> None:
    assert AVRO.parse("string", []).canonical == '"string"'


def test_a_referenced_avro_schema_is_only_named() -> None:
    user = Dependency("User", '{"type":"record","name":"User","namespace":"n","fields":[]}')
    text = '{"type":"record","name":"G","namespace":"n","fields":[{"name":"u","type":"User"}]}'
    schema = AVRO.parse(text, [user])
    assert schema.canonical == text, "what is elsewhere is only named"
    assert json.loads(schema.rendered("resolved"))["fields"][0]["type"]["name"] == "User"
    with pytest.raises(InvalidSchemaError, match="add a reference"):
        AVRO.parse(text, [])


def test_json_keeps_its_order_unless_normalized() -> None:
    schema = JSON.parse('{ "type": "object",  "$id": "x" }', [])
    assert schema.canonical == '{"type":"object","$id":"x"}'
    assert schema.normalized() == '{"$id":"x","type":"object"}'


def test_json_references_by_id_pointer_and_anchor() -> None:
    other = Dependency("other", '{"$id":"http://x/other.json","$defs":{"A":{"$anchor":"a","type":"string"}}}')
    for reference in ("other#/$defs/A", "http://x/other.json#/$defs/A", "other#a"):
        schema = JSON.parse(json.dumps({"$ref": reference}), [other])
        assert schema.problems_reading(JSON.parse('{"type":"string"}', [])) == []
        assert [row.kind for row in schema.problems_reading(JSON.parse('{"type":"null"}', []))] == ["TYPE_CHANGED"]
    relative = JSON.parse('{"$id":"http://x/main.json","$ref":"other.json#/$defs/A"}', [other])
    assert relative.problems_reading(JSON.parse('{"type":"string"}', [])) == []
    for wrong in ("other#/$defs/B", "#/nowhere", "#nothing", "another"):
        with pytest.raises(InvalidSchemaError, match=r"names no schema|is invalid"):
            JSON.parse(json.dumps({"$ref": wrong}), [other])


def test_json_behind_a_reference_is_checked_too() -> None:
    with pytest.raises(InvalidSchemaError, match="not a valid JSON Schema, at /properties"):
        JSON.parse('{"$ref":"#/$defs/L","$defs":{"L":{"properties":null}}}', [])
    with pytest.raises(InvalidSchemaError, match="is an object"):
        JSON.parse('{"$ref":"#/title","title":"x"}', [])
