"""JSON Schema: is every document that a writer's schema lets through valid for a reader's?

That is what compatibility means here; there are no rules of resolution as in Avro. Where the question cannot be decided
by looking at keywords, the answer is no: whoever knows better can register with another level. One thing is lenient, as
in other registries: a property that became required counts as there if it has a default.
"""

from collections.abc import Iterator
from typing import Any

from millstream.registry.formats.json_documents import SAYING, JsonDocuments, Place, UnknownReferenceError
from millstream.registry.formats.json_limits import (
    array_problems,
    matches,
    number_problems,
    same_json,
    size_problems,
    string_problems,
)
from millstream.registry.formats.schema import TOO_COMPLEX, Budget, Problem, TooComplexError

__all__ = ["JsonDocuments", "UnknownReferenceError", "problems_reading"]

_TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")
_CONDITIONS = ("if", "then", "else", "dependencies", "dependentRequired", "dependentSchemas")
_UNEVALUATED = ("unevaluatedProperties", "unevaluatedItems")
_MAX_DEPTH = 60


def problems_reading(reader: JsonDocuments, writer: JsonDocuments) -> list[Problem]:
    try:
        return _Comparison(reader, writer, Budget()).compare(reader.root, writer.root, "")
    except TooComplexError:
        return [TOO_COMPLEX]


class _Comparison:
    def __init__(self, reader: JsonDocuments, writer: JsonDocuments, budget: Budget) -> None:
        self._reader = reader
        self._writer = writer
        self._under_way: list[tuple[Any, Any]] = []
        """Pairs that are being compared: schemas may contain themselves."""
        self._budget = budget

    def compare(self, reader: Place, writer: Place, path: str) -> list[Problem]:
        self._budget.step()
        wanted, written = self._reader.followed(reader), self._writer.followed(writer)
        if wanted.schema is True or written.schema is False or not _says(wanted.schema):
            return []
        if any(one is wanted.schema and two is written.schema for one, two in self._under_way):
            return []
        if wanted.schema is False:
            return [
                Problem("SCHEMA_CLOSED", path or "/", "the reader lets nothing through here: allow what was written")
            ]
        if same_json(wanted.schema, written.schema) and not _has_references(wanted.schema):
            return []
        if len(self._under_way) > _MAX_DEPTH:
            return [Problem("TOO_DEEP", path or "/", "nested too deeply to be compared: refer to parts with $ref")]
        self._under_way.append((wanted.schema, written.schema))
        try:
            return self._objects(
                wanted, Place({} if written.schema is True else written.schema, written.document), path
            )
        finally:
            self._under_way.pop()

    def _objects(self, reader: Place, writer: Place, path: str) -> list[Problem]:
        """Takes combinations apart, the writer's first: each of its alternatives must be read."""
        writer = self._without_all_of(writer)
        for keyword in ("anyOf", "oneOf"):
            if keyword in writer.schema:
                rest = {name: value for name, value in writer.schema.items() if name != keyword}
                found = []
                for index, branch in enumerate(writer.schema[keyword]):
                    one = Place({"allOf": [rest, branch]} if _says(rest) else branch, writer.document)
                    found += self.compare(reader, one, f"{path}/{keyword}/{index}")
                return found
        if "const" in writer.schema or "enum" in writer.schema:
            return self._values(reader, writer, path)
        found = []
        for index, part in enumerate(reader.schema.get("allOf", ())):
            found += self.compare(Place(part, reader.document), writer, f"{path}/allOf/{index}")
        for keyword in ("anyOf", "oneOf"):
            branches = [Place(branch, reader.document) for branch in reader.schema.get(keyword, ())]
            if branches and all(self.compare(branch, writer, path) for branch in branches):
                found.append(
                    Problem(
                        "SUM_TYPE_NARROWED",
                        f"{path}/{keyword}",
                        f"none of the reader's alternatives takes all that {_shown(writer.schema)} allows: add one",
                    )
                )
        return found + self._not(reader, writer, path) + list(self._keywords(reader, writer, path))

    def _without_all_of(self, writer: Place) -> Place:
        """One schema for all parts of an `allOf`: the document is valid for each of them."""
        merged = dict(writer.schema)
        while "allOf" in merged:
            for part in merged.pop("allOf"):
                inner = self._writer.followed(Place(part, writer.document)).schema
                if isinstance(inner, dict):
                    merged = _both(merged, inner)
        return Place(merged, writer.document)

    def _values(self, reader: Place, writer: Place, path: str) -> list[Problem]:
        """The writer says each value that there may be."""
        values = [writer.schema["const"]] if "const" in writer.schema else writer.schema["enum"]
        missing = [value for value in values if not self._takes(reader, value)]
        if not missing:
            return []
        shown = ", ".join(repr(value) for value in missing[:5])
        return [
            Problem(
                "ENUM_ARRAY_NARROWED", f"{path}/enum", f"the reader does not take {shown}, which may be there: add it"
            )
        ]

    def _takes(self, reader: Place, value: Any) -> bool:
        """A value is read if its exact description is: that of scalars is their type and value."""
        schema = self._reader.followed(reader).schema
        if isinstance(schema, bool):
            return schema
        if "const" in schema and not same_json(schema["const"], value):
            return False
        if "enum" in schema and not any(same_json(one, value) for one in schema["enum"]):
            return False
        rest = {name: part for name, part in schema.items() if name not in ("const", "enum")}
        return not self.compare(Place(rest, reader.document), Place(_describe(value), ""), "")

    def _not(self, reader: Place, writer: Place, path: str) -> list[Problem]:
        """All that the reader excludes must be excluded by the writer too."""
        if "not" not in reader.schema:
            return []
        if "not" in writer.schema:
            turned = _Comparison(self._writer, self._reader, self._budget)
            excluded = Place(writer.schema["not"], writer.document)
            if not turned.compare(excluded, Place(reader.schema["not"], reader.document), path):
                return []
        return [Problem("NOT_TYPE_EXTENDED", f"{path}/not", "the reader excludes what the writer allows: exclude less")]

    def _keywords(self, reader: Place, writer: Place, path: str) -> Iterator[Problem]:
        new, old = reader.schema, writer.schema
        for keyword in ("enum", "const"):
            if keyword in new:
                yield Problem(
                    "ENUM_ARRAY_NARROWED",
                    f"{path}/{keyword}",
                    "the reader takes certain values only, the writer any: list the values on both sides or on none",
                )
        for keyword in (*_CONDITIONS, *_UNEVALUATED):
            if keyword in new and not same_json(new[keyword], old.get(keyword)):
                yield Problem(
                    "CONDITION_CHANGED",
                    f"{path}/{keyword}",
                    f"the reader's {keyword!r} is not the writer's, and may refuse what was written: keep it as it was",
                )
        kinds = _kinds(old)
        missing = [
            kind for kind in kinds if kind not in _kinds(new) and not (kind == "integer" and "number" in _kinds(new))
        ]
        if missing:
            yield Problem(
                "TYPE_NARROWED" if len(missing) < len(kinds) else "TYPE_CHANGED",
                f"{path}/type",
                f"the reader does not take {', '.join(missing)}, which may be there: add it to its types",
            )
        kinds = [kind for kind in kinds if kind not in missing]
        if "string" in kinds:
            yield from string_problems(new, old, path)
        if "number" in kinds or "integer" in kinds:
            yield from number_problems(new, old, path)
        if "array" in kinds:
            yield from array_problems(new, old, path)
            yield from self._items(reader, writer, path)
        if "object" in kinds:
            yield from size_problems(new, old, path, "Properties")
            yield from self._required(new, old, path)
            yield from self._properties(reader, writer, path)

    def _items(self, reader: Place, writer: Place, path: str) -> Iterator[Problem]:
        (new_first, new_rest), (old_first, old_rest) = _tuple(reader.schema), _tuple(writer.schema)
        for index in range(max(len(new_first), len(old_first))):
            new = new_first[index] if index < len(new_first) else new_rest
            old = old_first[index] if index < len(old_first) else old_rest
            yield from self.compare(Place(new, reader.document), Place(old, writer.document), f"{path}/items/{index}")
        yield from self.compare(Place(new_rest, reader.document), Place(old_rest, writer.document), f"{path}/items")
        if "contains" in reader.schema and not same_json(reader.schema["contains"], writer.schema.get("contains")):
            yield Problem("CONTAINS_CHANGED", f"{path}/contains", "the reader wants an element that may not be there")

    def _required(self, new: dict[str, Any], old: dict[str, Any], path: str) -> Iterator[Problem]:
        for name in new.get("required", ()):
            declared = new.get("properties", {}).get(name)
            has_default = isinstance(declared, dict) and "default" in declared
            if name not in old.get("required", ()) and not has_default:
                yield Problem(
                    "REQUIRED_ATTRIBUTE_ADDED",
                    f"{path}/required/{name}",
                    f"the reader requires {name!r}, which may be missing: make it optional, or give it a default",
                )

    def _properties(self, reader: Place, writer: Place, path: str) -> Iterator[Problem]:
        new, old = reader.schema, writer.schema
        here, there = new.get("properties", {}), old.get("properties", {})
        for name in {**here, **there}:
            where = f"{path}/properties/{name}"
            wanted = [Place(schema, reader.document) for schema in _of_property(new, name)]
            written = Place(_all(_of_property(old, name)), writer.document)
            found = [problem for one in wanted for problem in self.compare(one, written, where)]
            if found and name not in there and written.schema is True:
                yield Problem(
                    "PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL",
                    where,
                    f"{name!r} was not described before, so documents may have it with any value: "
                    'set "additionalProperties": false in both schemas, or allow any value',
                )
            elif found and name not in here and wanted[0].schema is False:
                yield Problem(
                    "PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL",
                    where,
                    f"the reader allows no property {name!r}, which may be there: keep it, or allow further ones",
                )
            else:
                yield from found
        for pattern in {**new.get("patternProperties", {}), **old.get("patternProperties", {})}:
            wanted_schema = new.get("patternProperties", {}).get(pattern, new.get("additionalProperties", True))
            written_schema = old.get("patternProperties", {}).get(pattern, old.get("additionalProperties", True))
            places = Place(wanted_schema, reader.document), Place(written_schema, writer.document)
            yield from self.compare(*places, f"{path}/patternProperties/{pattern}")
        extra = Place(new.get("additionalProperties", True), reader.document)
        found = self.compare(extra, Place(old.get("additionalProperties", True), writer.document), path)
        if found:
            yield Problem(
                "ADDITIONAL_PROPERTIES_NARROWED" if extra.schema is not False else "ADDITIONAL_PROPERTIES_REMOVED",
                f"{path}/additionalProperties",
                "the reader does not take all the further properties that may be there: allow them as before",
            )
        if "propertyNames" in new:
            names = Place(old.get("propertyNames", True), writer.document)
            yield from self.compare(Place(new["propertyNames"], reader.document), names, f"{path}/propertyNames")


def _of_property(schema: dict[str, Any], name: str) -> list[Any]:
    """The schemas that a property of this name must satisfy."""
    found = [schema["properties"][name]] if name in schema.get("properties", {}) else []
    found += [part for pattern, part in schema.get("patternProperties", {}).items() if matches(pattern, name)]
    return found or [schema.get("additionalProperties", True)]


def _all(schemas: list[Any]) -> Any:
    return schemas[0] if len(schemas) == 1 else {"allOf": schemas}


def _says(schema: Any) -> bool:
    return schema is False or (isinstance(schema, dict) and not SAYING.isdisjoint(schema))


def _has_references(schema: Any) -> bool:
    """Then the same words may mean something else in another document."""
    return "$ref" in repr(schema)


def _kinds(schema: dict[str, Any]) -> list[str]:
    given = schema.get("type")
    if given is None:
        return [kind for kind in _TYPES if kind != "integer"]
    return [given] if isinstance(given, str) else list(given)


def _tuple(schema: dict[str, Any]) -> tuple[list[Any], Any]:
    """The schemas of the first elements, and that of all others; drafts say it in two ways."""
    items = schema.get("items", True)
    if "prefixItems" in schema:
        return list(schema["prefixItems"]), items
    if isinstance(items, list):
        return items, schema.get("additionalItems", True)
    return [], items


def _both(one: dict[str, Any], two: dict[str, Any]) -> dict[str, Any]:
    """A schema that is at most as strict as both together: good enough for a writer's, of which less is known then."""
    merged = {**two, **one}
    if "properties" in one and "properties" in two:
        merged["properties"] = {**two["properties"], **one["properties"]}
    if "required" in one and "required" in two:
        merged["required"] = list(dict.fromkeys([*one["required"], *two["required"]]))
    if "allOf" in one and "allOf" in two:
        merged["allOf"] = [*one["allOf"], *two["allOf"]]
    return merged


def _describe(value: Any) -> dict[str, Any]:
    """The narrowest schema of a value that the comparison can work with."""
    if value is None:
        return {"type": "null"}
    if isinstance(value, bool):
        return {"type": "boolean"}
    if isinstance(value, str):
        return {"type": "string", "minLength": len(value), "maxLength": len(value), "x-value": value}
    if isinstance(value, (int, float)):
        kind = "integer" if float(value).is_integer() else "number"
        return {"type": kind, "minimum": value, "maximum": value, "multipleOf": abs(value) or 1}
    if isinstance(value, list):
        first = [_describe(one) for one in value]
        return {"type": "array", "prefixItems": first, "items": False, "minItems": len(value), "maxItems": len(value)}
    properties = {name: _describe(one) for name, one in value.items()}
    return {"type": "object", "properties": properties, "required": list(value), "additionalProperties": False}


def _shown(schema: dict[str, Any]) -> str:
    return " or ".join(_kinds(schema)) if "type" in schema else "the writer's schema"
