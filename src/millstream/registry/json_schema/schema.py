"""A JSON Schema: parsing, canonical text, and compatibility in every draft that may apply."""

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from jsonschema.exceptions import SchemaError
from jsonschema.validators import Draft7Validator, Draft202012Validator, validator_for

from millstream.registry.avro.schema import load_json
from millstream.registry.formats import Dependency, InvalidSchemaError, Problem
from millstream.registry.json_schema.comparison import JsonDocuments, UnknownReferenceError, problems_reading
from millstream.registry.json_schema.documents import DRAFT_2020
from millstream.registry.json_schema.keywords import same_json

_VALID_IN_2020 = Draft202012Validator(Draft202012Validator.META_SCHEMA)


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

    def rule_violation(self) -> str | None:
        return None  # parsing checks every rule

    def problems_reading(self, writer: "JsonSchema") -> list[Problem]:
        """A schema that names no draft is read as draft 7 by most validators and as the newest by others: then both
        must find that it is compatible."""
        if same_json(self.documents.main, writer.documents.main) and self.documents.others == writer.documents.others:
            return []
        found = problems_reading(self.documents, writer.documents)
        if found or not (self.differs_by_draft or writer.differs_by_draft):
            return found
        return problems_reading(self.newest, writer.newest)

    @cached_property
    def newest(self) -> JsonDocuments:
        """Read as the newest draft, unless it names another or is not valid in that one."""
        schemas = (self.documents.main, *self.documents.others.values())
        if self.documents.names_its_draft or not all(map(_VALID_IN_2020.is_valid, schemas)):
            return self.documents
        return JsonDocuments(self.documents.main, self.documents.others, DRAFT_2020)

    @cached_property
    def differs_by_draft(self) -> bool:
        return not self.documents.names_its_draft and self.documents.differs_by_draft


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
        raise InvalidSchemaError(f"not a valid JSON Schema, at {path}: {error.message}") from None
