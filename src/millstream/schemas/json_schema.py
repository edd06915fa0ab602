"""Arrow types of JSON Schemas, and JSON Schemas of Arrow types; and the values that a JSON Schema requires.

A type has one column type: unions other than with null are refused with their path. `required` properties and values
that may not be null are checked on the parsed JSON, because Arrow does not tell a missing value from null.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from millstream.schemas.errors import SchemaError
from millstream.schemas.formats import ResolvedSchema
from millstream.schemas.spark_types import TIMESTAMP, list_of, struct_of

Check = Callable[[Any], str | None]


@dataclass(frozen=True, slots=True)
class Rule:
    """The rule of one value. Properties that are not named are not checked."""

    required: Mapping[str, bool] = field(default_factory=dict)
    """Required properties, and whether they may be null."""
    properties: Mapping[str, "Rule"] = field(default_factory=dict)
    items: "Rule | None" = None
    """The rule of elements of an array, or of values of a map."""
    items_nullable: bool = True

    @property
    def says_nothing(self) -> bool:
        return not self.required and not self.properties and self.items is None and self.items_nullable


NO_RULE = Rule()


def either(one: Rule, two: Rule) -> Rule:
    """The rule that two alternatives have in common."""
    return Rule(
        {name: one.required[name] or two.required[name] for name in one.required if name in two.required},
        _said(
            {
                name: either(one.properties[name], two.properties[name])
                for name in one.properties.keys() & two.properties
            }
        ),
        None if one.items is None or two.items is None else either(one.items, two.items),
        one.items_nullable or two.items_nullable,
    )


def both(one: Rule, two: Rule) -> Rule:
    """The rule of a value that has two schemas."""
    required = {**one.required, **two.required}
    names = one.properties.keys() | two.properties
    return Rule(
        {name: one.required.get(name, True) and two.required.get(name, True) for name in required},
        {name: both(one.properties.get(name, NO_RULE), two.properties.get(name, NO_RULE)) for name in sorted(names)},
        one.items if two.items is None else two.items if one.items is None else both(one.items, two.items),
        one.items_nullable and two.items_nullable,
    )


def of_object(required: Mapping[str, bool], properties: Mapping[str, Rule]) -> Rule:
    return Rule(dict(required), _said(properties))


def _said(rules: Mapping[str, Rule]) -> dict[str, Rule]:
    return {name: rule for name, rule in rules.items() if not rule.says_nothing}


def checker(rule: Rule, path: str = "") -> Check:
    """A function from parsed JSON to the missing value, or None. Types are checked by the converter."""
    inner = [(name, checker(each, f"{path}.{name}")) for name, each in rule.properties.items()]
    element = None if rule.items is None else checker(rule.items, f"{path}[]")

    def check(value: Any) -> str | None:
        if isinstance(value, dict):
            for name, nullable in rule.required.items():
                if name not in value:
                    return f"{_shown(path, name)} is missing, and the schema requires it"
                if value[name] is None and not nullable:
                    return f"{_shown(path, name)} is null, which the schema does not allow"
            for name, each in inner:
                if name in value:
                    found = each(value[name])
                    if found is not None:
                        return found
            return check_items(value.values())
        return check_items(value) if isinstance(value, list) else None

    def check_items(values: Any) -> str | None:
        if element is None and rule.items_nullable:
            return None
        for each in values:
            if each is None and not rule.items_nullable:
                return f"{path.lstrip('.') or 'the record'} has a null in it, which the schema does not allow"
            found = None if element is None else element(each)
            if found is not None:
                return found
        return None

    return check


def _shown(path: str, name: str) -> str:
    return f"{path}.{name}".lstrip(".")


def has_all_required(rows: pa.Array, rule: Rule) -> bool:
    """Whether the columns show that no required value is missing."""
    if pa.types.is_struct(rows.type):
        return _struct_is_certain(rows, rule)
    if pa.types.is_list(rows.type):
        values = rows.flatten()
        return (rule.items_nullable or not values.null_count) and (
            rule.items is None or has_all_required(values, rule.items)
        )
    return rule.says_nothing


def _struct_is_certain(rows: pa.StructArray, rule: Rule) -> bool:
    here = rows.is_valid()
    for name in rule.required:
        place = rows.type.get_field_index(name)
        if place < 0:
            return False
        column = rows.field(place)
        if column.null_count and pc.any(pc.and_(column.is_null(), here)).as_py():
            return False
    for name, inner in rule.properties.items():
        place = rows.type.get_field_index(name)
        if place < 0 or not has_all_required(rows.field(place), inner):
            return False
    return rule.items is None and rule.items_nullable


_SCALARS = {"boolean": pa.bool_(), "integer": pa.int64(), "number": pa.float64(), "string": pa.string()}
_STRINGS = {"date-time": TIMESTAMP, "date": pa.date32()}


def is_json_schema(text: str) -> bool:
    """Whether a text is a JSON Schema, and not Spark's JSON or DDL."""
    try:
        parsed = json.loads(text)
    except ValueError:
        return False
    return isinstance(parsed, dict) and parsed.get("type") != "struct"


class Column(NamedTuple):
    type: pa.DataType
    """A struct for an object, else the type of the value."""
    rule: Rule
    """The required values."""
    nullable: bool


def column_of(schema: ResolvedSchema) -> Column:
    documents = {"": _parse(schema.text), **{name: _parse(text) for name, text in schema.references}}
    reader = _Reader(documents)
    kind = reader.type_of(documents[""], "", "$", ())
    return Column(kind, *reader.rule_of(documents[""], ""))


def _parse(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise SchemaError(f"The JSON Schema is not JSON: {error}.") from None


class _Reader:
    def __init__(self, documents: Mapping[str, Any]) -> None:
        self._documents = dict(documents)
        for name, document in documents.items():
            if isinstance(document, dict) and "$id" in document:
                self._documents.setdefault(str(document["$id"]), documents[name])

    def type_of(self, schema: Any, document: str, path: str, open_refs: tuple[str, ...]) -> pa.DataType:
        if not isinstance(schema, dict):
            raise SchemaError(f"The JSON Schema has no type at {path}; add one.")
        if "$ref" in schema:
            return self._referred(str(schema["$ref"]), document, path, open_refs)
        for union in ("oneOf", "anyOf"):
            if union in schema:
                branches = [each for each in schema[union] if each != {"type": "null"}]
                return self._one_of([self.type_of(each, document, path, open_refs) for each in branches], path)
        if len(schema.get("allOf", ())) == 1:
            return self.type_of(schema["allOf"][0], document, path, open_refs)
        names = schema.get("type")
        if names is None:
            names = "object" if "properties" in schema else self._kind_of_constants(schema)
        names = [each for each in ([names] if isinstance(names, str) else names or []) if each != "null"]
        if not names:
            raise SchemaError(f"The JSON Schema has no type at {path}; add one.")
        return self._one_of([self._named(str(name), schema, document, path, open_refs) for name in names], path)

    def _kind_of_constants(self, schema: Mapping[str, Any]) -> str | None:
        values = [value for value in schema.get("enum", [schema.get("const")]) if value is not None]
        return "string" if values and all(isinstance(value, str) for value in values) else None

    def _one_of(self, kinds: list[pa.DataType], path: str) -> pa.DataType:
        distinct = list(dict.fromkeys(kinds))
        if set(distinct) == {pa.int64(), pa.float64()}:
            return pa.float64()
        if len(distinct) != 1:
            raise SchemaError(
                f"The JSON Schema allows {' or '.join(map(str, distinct)) or 'nothing'} at {path}; a column has one "
                "type. Give the columns' types yourself, or read the record as text."
            )
        return distinct[0]

    def _named(
        self, name: str, schema: Mapping[str, Any], document: str, path: str, open_refs: tuple[str, ...]
    ) -> pa.DataType:
        if name == "string":
            if schema.get("contentEncoding") == "base64":
                return pa.binary()
            return _STRINGS.get(str(schema.get("format")), pa.string())
        if name in _SCALARS:
            return _SCALARS[name]
        if name == "array":
            return list_of(self.type_of(schema.get("items"), document, f"{path}[]", open_refs))
        if name != "object":
            raise SchemaError(f"JSON Schema has no type {name!r} (at {path}).")
        properties = schema.get("properties") or {}
        if not properties and isinstance(schema.get("additionalProperties"), dict):
            inner = self.type_of(schema["additionalProperties"], document, f"{path}.*", open_refs)
            return pa.map_(pa.string(), inner)
        if not properties:
            raise SchemaError(f"The JSON Schema names no properties of the object at {path}.")
        return struct_of(
            [(key, self.type_of(each, document, f"{path}.{key}", open_refs)) for key, each in properties.items()]
        )

    def _referred(self, ref: str, document: str, path: str, open_refs: tuple[str, ...]) -> pa.DataType:
        if ref in open_refs:
            raise SchemaError(f"The JSON Schema contains itself at {path} ({ref}); columns cannot.")
        found, target = self._target(ref, document, path)
        return self.type_of(found, target, path, (*open_refs, ref))

    def _target(self, ref: str, document: str, path: str) -> tuple[Any, str]:
        name, _, pointer = ref.partition("#")
        target = name or document
        if target not in self._documents:
            raise SchemaError(f"The JSON Schema refers to {ref!r} at {path}, which is not among its references.")
        found = self._documents[target]
        for part in pointer.strip("/").split("/") if pointer.strip("/") else ():
            key = part.replace("~1", "/").replace("~0", "~")
            if not isinstance(found, dict) or key not in found:
                raise SchemaError(f"The JSON Schema refers to {ref!r} at {path}, which does not exist.")
            found = found[key]
        return found, target

    def rule_of(self, schema: Any, document: str, open_refs: tuple[str, ...] = ()) -> tuple[Rule, bool]:
        """The rule of a schema, and whether null is allowed."""
        if not isinstance(schema, dict) or schema.get("$ref") in open_refs:
            return NO_RULE, True
        if "$ref" in schema:
            ref = str(schema["$ref"])
            return self.rule_of(*self._target(ref, document, "$"), (*open_refs, ref))
        for union in ("oneOf", "anyOf"):
            if union in schema:
                found = [self.rule_of(each, document, open_refs) for each in schema[union] if each != {"type": "null"}]
                nullable = len(found) < len(schema[union]) or any(null for _, null in found)
                return both(
                    reduce(either, [rule for rule, _ in found]), self._own_rule(schema, document, open_refs)
                ), nullable
        rule, nullable = self._own_rule(schema, document, open_refs), _may_be_null(schema)
        for part in schema.get("allOf", ()):
            more, also = self.rule_of(part, document, open_refs)
            rule, nullable = both(rule, more), nullable and also
        return rule, nullable

    def _own_rule(self, schema: Mapping[str, Any], document: str, open_refs: tuple[str, ...]) -> Rule:
        """The rule of the schema itself. A required property with a default may be missing, as in the registry's
        comparison of schemas."""
        properties = schema.get("properties") or {}
        inner = {name: self.rule_of(each, document, open_refs) for name, each in properties.items()}
        required = {
            name: inner[name][1] if name in inner else True
            for name in schema.get("required") or ()
            if not _has_default(properties.get(name))
        }
        rule = of_object(required, {name: each for name, (each, _) in inner.items()})
        element = (
            schema.get("items") if "items" in schema else None if properties else schema.get("additionalProperties")
        )
        if isinstance(element, dict):
            items, nullable = self.rule_of(element, document, open_refs)
            rule = replace(rule, items=None if items.says_nothing else items, items_nullable=nullable)
        return rule


def _may_be_null(schema: Mapping[str, Any]) -> bool:
    kinds = schema.get("type")
    if kinds is not None and kinds != "null" and "null" not in kinds:
        return False
    return None in schema["enum"] if "enum" in schema else schema.get("const") is None


def _has_default(schema: Any) -> bool:
    return isinstance(schema, dict) and "default" in schema


def schema_text(kind: pa.DataType, title: str) -> str:
    """A JSON Schema for these columns, all optional, or for a single value."""
    return json.dumps({"$schema": "http://json-schema.org/draft-07/schema#", "title": title, **_schema_of(kind)})


def _schema_of(kind: pa.DataType) -> dict[str, Any]:
    types = pa.types
    if types.is_struct(kind):
        properties = {field.name: _nullable(_schema_of(field.type)) for field in kind}
        return {"type": "object", "properties": properties}
    if types.is_map(kind):
        return {"type": "object", "additionalProperties": _nullable(_schema_of(kind.item_type))}
    if types.is_list(kind) or types.is_large_list(kind):
        return {"type": "array", "items": _nullable(_schema_of(kind.value_type))}
    if types.is_boolean(kind):
        return {"type": "boolean"}
    if types.is_integer(kind):
        return {"type": "integer"}
    if types.is_floating(kind) or types.is_decimal(kind):
        return {"type": "number"}
    if types.is_string(kind) or types.is_large_string(kind):
        return {"type": "string"}
    if types.is_timestamp(kind):
        return {"type": "string", "format": "date-time"}
    if types.is_date(kind):
        return {"type": "string", "format": "date"}
    if types.is_binary(kind) or types.is_large_binary(kind):
        return {"type": "string", "contentEncoding": "base64"}
    raise SchemaError(f"A column of type {kind} cannot be written as JSON; cast it first.")


def _nullable(schema: dict[str, Any]) -> dict[str, Any]:
    return {"oneOf": [{"type": "null"}, schema]}
