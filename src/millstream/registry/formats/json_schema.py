"""JSON Schemas."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from jsonschema.exceptions import SchemaError
from jsonschema.validators import Draft7Validator, validator_for

from millstream.registry.formats.avro import load_json
from millstream.registry.formats.json_compatibility import JsonDocuments, UnknownReferenceError, problems_reading
from millstream.registry.formats.schema import Dependency, InvalidSchemaError, Problem


class JsonSchema:
    def __init__(self, document: Any, others: Mapping[str, Any]) -> None:
        self.documents = JsonDocuments(document, others)

    @property
    def canonical(self) -> str:
        return json.dumps(self.documents.main, separators=(",", ":"), ensure_ascii=False)

    def normalized(self) -> str:
        return json.dumps(self.documents.main, separators=(",", ":"), ensure_ascii=False, sort_keys=True)

    def rendered(self, form: str) -> str:
        return self.canonical

    def flaw(self) -> str | None:
        return None  # parsing checks every rule

    def problems_reading(self, writer: "JsonSchema") -> list[Problem]:
        return problems_reading(self.documents, writer.documents)


class JsonSchemaFormat:
    name = "JSON"
    forms: frozenset[str] = frozenset()

    def parse(self, text: str, dependencies: Sequence[Dependency]) -> JsonSchema:
        others = {row.name: load_json(row.text, f"reference {row.name!r}: ") for row in dependencies}
        document = load_json(text)
        schema = JsonSchema(document, others)
        _check(document, document)
        try:
            # Validators do not look behind names that their draft does not know, such as `$defs` in older ones.
            for target in (*others.values(), *schema.documents.referred_to()):
                _check(target, document)
        except UnknownReferenceError as error:
            raise InvalidSchemaError(str(error)) from None
        return schema


def _check(schema: Any, main: Any) -> None:
    if not isinstance(schema, (dict, bool)):
        raise InvalidSchemaError("a JSON Schema is an object, or true or false")
    try:
        draft = validator_for(schema, default=validator_for(main, default=Draft7Validator))
        draft.check_schema(schema)
    except SchemaError as error:
        path = "/" + "/".join(str(part) for part in error.absolute_path)
        raise InvalidSchemaError(f"this is no JSON Schema, at {path}: {error.message}") from None
