"""The JSON of the registry's API: requests with schemas read and checked, schemas shown."""

from typing import Any

from millstream.gateway.http.asked import Asked
from millstream.gateway.http.errors import BadRequestError
from millstream.registry.errors import invalid_schema, invalid_version
from millstream.registry.formats.table import FORMATS
from millstream.registry.records import Reference, StoredSchema
from millstream.registry.registering import SchemaRequest
from millstream.registry.registry import Registry
from millstream.registry.state import reference_place
from millstream.registry.subjects import Subject, parse_subject

MEDIA_TYPE = "application/vnd.schemaregistry.v1+json"
_MAX_VERSION = 2**31 - 1


def read_subject(asked: Asked) -> Subject:
    return parse_subject(asked.path("subject"))


def read_version(asked: Asked) -> int | None:
    """None is the latest."""
    text = asked.path("version")
    if text in ("latest", "-1"):
        return None
    if not text.isdecimal() or len(text) > 10 or not 1 <= int(text) <= _MAX_VERSION:
        raise invalid_version(text)
    return int(text)


def read_request(asked: Asked) -> SchemaRequest:
    document = asked.document()
    text = document.get("schema")
    if not isinstance(text, str):
        raise invalid_schema("send the schema as a string in the field 'schema'")
    type_ = document.get("schemaType")
    if type_ is not None and not isinstance(type_, str):
        raise invalid_schema(f"'schemaType' must be one of {', '.join(sorted(FORMATS))}")
    return SchemaRequest(
        text,
        type_ or "AVRO",
        tuple(_read_reference(row) for row in _list(document, "references")),
        _object(document, "metadata"),
        _object(document, "ruleSet"),
        _number(document, "id"),
        _number(document, "version"),
    )


def _read_reference(row: Any) -> Reference:
    if not isinstance(row, dict):
        raise invalid_schema("a reference must be an object with name, subject and version")
    name, subject, version = row.get("name"), row.get("subject"), row.get("version")
    if not (isinstance(name, str) and isinstance(subject, str) and isinstance(version, int) and name and subject):
        raise invalid_schema("a reference needs 'name' and 'subject' as strings and 'version' as a number")
    return Reference(name, subject, version)


def _list(document: dict[str, Any], name: str) -> list[Any]:
    value = document.get(name)
    if value is not None and not isinstance(value, list):
        raise invalid_schema(f"'{name}' must be a list")
    return value or []


def _object(document: dict[str, Any], name: str) -> dict[str, Any] | None:
    value = document.get(name)
    if value is not None and not isinstance(value, dict):
        raise invalid_schema(f"'{name}' must be an object")
    return value or None


def _number(document: dict[str, Any], name: str) -> int | None:
    """Numbers below 1 are how some clients say: none."""
    value = document.get(name)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value > _MAX_VERSION):
        raise invalid_schema(f"'{name}' must be a whole number up to {_MAX_VERSION}")
    return value if value is not None and value > 0 else None


def shown_content(registry: Registry, schema: StoredSchema, asked: Asked) -> dict[str, Any]:
    """A schema without where it is registered."""
    form = asked.text("format")
    if form and not any(form in format_.forms for format_ in FORMATS.values()):
        known = sorted({form for format_ in FORMATS.values() for form in format_.forms})
        raise BadRequestError(422, f"?format={form} is not known: give one of {', '.join(known)}, or leave it out")
    document: dict[str, Any] = {}
    if schema.type != "AVRO":
        document["schemaType"] = schema.type
    fits = schema.type in FORMATS and form in FORMATS[schema.type].forms
    document["schema"] = registry.rendered(schema, form) if fits else schema.text
    if schema.references:
        qualified = asked.text("referenceFormat", "reference_format").lower() == "qualified"
        document["references"] = [_shown_reference(schema, row, qualified) for row in schema.references]
    if schema.metadata:
        document["metadata"] = schema.metadata
    if schema.rule_set:
        document["ruleSet"] = schema.rule_set
    return document


def shown_version(registry: Registry, schema: StoredSchema, asked: Asked) -> dict[str, Any]:
    document = {"subject": str(schema.subject), "version": schema.version, "id": schema.id}
    document |= shown_content(registry, schema, asked)
    return document | {"deleted": True} if schema.deleted else document


def _shown_reference(schema: StoredSchema, reference: Reference, qualified: bool) -> dict[str, Any]:
    document = reference.as_json()
    if qualified:
        document["subject"] = str(reference_place(schema.subject, reference.subject, reference.version)[0])
    return document
