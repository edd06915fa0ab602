"""The records of `_schemas` in the format of Confluent's registry, and the names of subjects.

Keys and values are JSON. The topic is compacted by key, so the bytes of a key must be the same for all writers: no
spaces, fields in a fixed order. Unknown kinds of keys are skipped; unknown fields of a schema are kept when its record
is written again.
"""

import json
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from millstream.registry.errors import invalid_subject

DEFAULT_CONTEXT = "."
EVERY_CONTEXT = ":*:"
GLOBAL = "__GLOBAL"
"""The prefix for all contexts in Confluent's tools."""


class Subject(NamedTuple):
    context: str
    name: str

    def __str__(self) -> str:
        return self.name if self.context == DEFAULT_CONTEXT else f":{self.context}:{self.name}"

    @property
    def whole_context(self) -> "Subject":
        """The subject without a name, under which a context keeps its config and mode."""
        return Subject(self.context, "")


def parse_subject(text: str, *, may_be_context: bool = False) -> Subject:
    """What stands in a request or a record; `:.:name` is `name`."""
    subject = split_context(text)
    has_controls = any(ord(character) < 32 or ord(character) == 127 for character in text)
    if has_controls or subject.name in (GLOBAL, "__EMPTY") or not (subject.name or may_be_context):
        raise invalid_subject(text)
    return subject


def split_context(text: str) -> Subject:
    """The context before the second colon, if the text begins with one."""
    if text.startswith(":"):
        context, colon, name = text[1:].partition(":")
        if colon and context.startswith("."):
            return Subject(context, name)
    return Subject(DEFAULT_CONTEXT, text)


TENANT = "default"


class Kind(StrEnum):
    """The `keytype` of a record."""

    SCHEMA = "SCHEMA"
    CONFIG = "CONFIG"
    MODE = "MODE"
    DELETE_SUBJECT = "DELETE_SUBJECT"
    CLEAR_SUBJECT = "CLEAR_SUBJECT"
    CONTEXT = "CONTEXT"
    NOOP = "NOOP"


class Key(NamedTuple):
    kind: Kind
    subject: Subject | None = None
    """None is global, for CONFIG and MODE. A subject without a name means its whole context."""
    version: int = 0


class Entry(NamedTuple):
    """A decoded record: its key, and its value as a JSON object, or None for a tombstone."""

    key: Key
    value: dict[str, Any] | None


class Reference(NamedTuple):
    """A schema that another schema uses: its name there, and its subject and version."""

    name: str
    subject: str
    version: int

    def as_json(self) -> dict[str, Any]:
        return {"name": self.name, "subject": self.subject, "version": self.version}


@dataclass(frozen=True, slots=True)
class StoredSchema:
    """One version of a subject, as its record has it."""

    subject: Subject
    version: int
    id: int
    type: str
    text: str
    references: tuple[Reference, ...] = ()
    metadata: dict[str, Any] | None = None
    rule_set: dict[str, Any] | None = None
    deleted: bool = False
    others: dict[str, Any] = field(default_factory=dict)
    """Fields that other registries write and this one does not use."""

    @property
    def content(self) -> "Content":
        return Content(self.type, self.text, self.references, _frozen(self.metadata), _frozen(self.rule_set))


class Content(NamedTuple):
    """The parts that decide whether two schemas are equal and have the same id: all but subject and version."""

    type: str
    text: str
    references: tuple[Reference, ...] = ()
    metadata: str = ""
    rule_set: str = ""


def content_of(
    type_: str,
    text: str,
    references: tuple[Reference, ...],
    metadata: dict[str, Any] | None,
    rule_set: dict[str, Any] | None,
) -> Content:
    """The content of a schema that is not stored yet."""
    return Content(type_, text, references, _frozen(metadata), _frozen(rule_set))


def schema_entry(schema: StoredSchema) -> Entry:
    value: dict[str, Any] = {"subject": str(schema.subject), "version": schema.version, "id": schema.id}
    if schema.type != "AVRO":
        value["schemaType"] = schema.type
    if schema.references:
        value["references"] = [reference.as_json() for reference in schema.references]
    if schema.metadata:
        value["metadata"] = schema.metadata
    if schema.rule_set:
        value["ruleSet"] = schema.rule_set
    value |= {"schema": schema.text, "deleted": schema.deleted}
    return Entry(Key(Kind.SCHEMA, schema.subject, schema.version), schema.others | value)


def read_schema(key: Key, value: dict[str, Any]) -> StoredSchema:
    """Raises ValueError, KeyError or TypeError for a value that is not a schema."""
    assert key.subject is not None
    rest = dict(value)
    rest.pop("subject", None)
    version, schema_id, text = int(rest.pop("version", key.version)), int(rest.pop("id")), rest.pop("schema")
    if not isinstance(text, str) or version != key.version:
        raise ValueError("the value does not match its key")
    references = tuple(
        Reference(str(row["name"]), str(row["subject"]), int(row["version"]))
        for row in rest.pop("references", None) or ()
    )
    return StoredSchema(
        key.subject,
        version,
        schema_id,
        str(rest.pop("schemaType", None) or "AVRO").upper(),
        text,
        references,
        rest.pop("metadata", None) or None,
        rest.pop("ruleSet", None) or None,
        bool(rest.pop("deleted", False)),
        rest,
    )


def encode_key(key: Key) -> bytes:
    document: dict[str, Any] = {"keytype": str(key.kind)}
    if key.kind is Kind.CONTEXT:
        assert key.subject is not None
        document |= {"tenant": TENANT, "context": key.subject.context}
    elif key.kind is not Kind.NOOP:
        document["subject"] = None if key.subject is None else str(key.subject)
    if key.kind is Kind.SCHEMA:
        document["version"] = key.version
    document["magic"] = 1 if key.kind is Kind.SCHEMA else 0
    return _dump(document)


def encode_value(value: dict[str, Any] | None) -> bytes | None:
    return None if value is None else _dump(value)


def decode(key: bytes | None, value: bytes | None) -> Entry | None:
    """None for an unknown kind of record. ValueError if it is not a record of a registry."""
    document = _load(key)
    try:
        kind = Kind(str(document.get("keytype")))
    except ValueError:
        return None
    subject = None
    if kind is Kind.CONTEXT:
        subject = Subject(str(document.get("context") or DEFAULT_CONTEXT), "")
    elif document.get("subject") is not None:
        subject = split_context(str(document["subject"]))
    elif kind in (Kind.SCHEMA, Kind.DELETE_SUBJECT, Kind.CLEAR_SUBJECT):
        raise ValueError(f"a {kind} record names no subject")
    version = int(document["version"]) if kind is Kind.SCHEMA else 0
    return Entry(Key(kind, subject, version), None if value is None else _load(value))


def _load(data: bytes | None) -> dict[str, Any]:
    document = json.loads(data or b"null")
    if not isinstance(document, dict):
        raise ValueError("not a JSON object")
    return document


def _dump(document: dict[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()


def _frozen(document: dict[str, Any] | None) -> str:
    return json.dumps(document, sort_keys=True) if document else ""
