"""The JSON of the registry's API: requests with schemas read and checked, schemas shown.

The registry's routes, described.
"""

from collections.abc import Sequence
from typing import Any

from millstream.gateway.http.errors import ApiError
from millstream.gateway.http.request import ApiRequest
from millstream.gateway.http.routes import (
    ANYTHING,
    FLAG,
    INT32,
    TEXT,
    Doc,
    JsonSchema,
    Parameter,
    array,
    mapping,
    record,
    text,
    whole,
)
from millstream.registry.errors import invalid_schema, invalid_version
from millstream.registry.records import Reference, StoredSchema, Subject, parse_subject
from millstream.registry.registering import FORMATS, SchemaRequest
from millstream.registry.registry import Registry
from millstream.registry.state import resolve_reference

MEDIA_TYPE = "application/vnd.schemaregistry.v1+json"
_MAX_VERSION = 2**31 - 1


def read_subject(asked: ApiRequest) -> Subject:
    return parse_subject(asked.path("subject"))


def read_version(asked: ApiRequest) -> int | None:
    """None is the latest."""
    text = asked.path("version")
    if text in ("latest", "-1"):
        return None
    if not text.isdecimal() or len(text) > 10 or not 1 <= int(text) <= _MAX_VERSION:
        raise invalid_version(text)
    return int(text)


def read_request(asked: ApiRequest) -> SchemaRequest:
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


def shown_content(registry: Registry, schema: StoredSchema, asked: ApiRequest) -> dict[str, Any]:
    """A schema without where it is registered."""
    form = asked.text("format")
    if form and not any(form in format_.forms for format_ in FORMATS.values()):
        known = sorted({form for format_ in FORMATS.values() for form in format_.forms})
        raise ApiError(422, f"?format={form} is not known: give one of {', '.join(known)}, or leave it out")
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


def shown_version(registry: Registry, schema: StoredSchema, asked: ApiRequest) -> dict[str, Any]:
    document = {"subject": str(schema.subject), "version": schema.version, "id": schema.id}
    document |= shown_content(registry, schema, asked)
    return document | {"deleted": True} if schema.deleted else document


def _shown_reference(schema: StoredSchema, reference: Reference, qualified: bool) -> dict[str, Any]:
    document = reference.as_json()
    if qualified:
        document["subject"] = str(resolve_reference(schema.subject, reference.subject, reference.version)[0])
    return document


_TAG = "Schema registry"
_POSITIVE = whole(minimum=1, maximum=2**31 - 1)
_REFERENCE = record({"name": TEXT, "subject": TEXT, "version": INT32})
_CONTENT: dict[str, JsonSchema] = {
    "schemaType": text("AVRO if it is left out.", enum=sorted(FORMATS)),
    "references": array(_REFERENCE),
    "metadata": {"type": "object"},
    "ruleSet": {"type": "object"},
}
_SENT = record({"schema": text("The schema's text.")}, _CONTENT | {"id": _POSITIVE, "version": _POSITIVE})
_SHOWN = record({"schema": TEXT}, _CONTENT | {"maxId": INT32})
_VERSION = record(
    {"subject": TEXT, "version": INT32, "id": INT32, "schema": TEXT},
    _CONTENT | {"deleted": FLAG},
)
_LEVELS = ("NONE", "BACKWARD", "BACKWARD_TRANSITIVE", "FORWARD", "FORWARD_TRANSITIVE", "FULL", "FULL_TRANSITIVE")
_CONFIG = record({}, {"compatibility": text("How new versions must fit the old.", enum=list(_LEVELS)), "alias": TEXT})
_SHOWN_CONFIG = mapping(ANYTHING)
_MODES = ("READWRITE", "READONLY", "READONLY_OVERRIDE", "IMPORT")
_MODE = record({"mode": text("What may be changed.", enum=list(_MODES))})
_VERDICT = record({"is_compatible": FLAG}, {"messages": array(TEXT)})

_DELETED = Parameter("deleted", "With those that are deleted, but not for good.", FLAG)
_DELETED_ONLY = Parameter("deletedOnly", "Only those that are deleted, but not for good.", FLAG)
_PERMANENT = Parameter("permanent", "For good; what is not deleted yet must be so first.", FLAG)
_NORMALIZE = Parameter("normalize", "Compare and store the schema in its normal form.", FLAG)
_PREFIX = Parameter("subjectPrefix", "Of subjects whose names begin with this; ':*:' is every context.", TEXT)
_SUBJECT = Parameter("subject", "Look in the context of this subject.", TEXT)
_FORMAT = Parameter("format", "Another form of the text: resolved, or for Protobuf serialized.", TEXT)
_DEFAULT = Parameter("defaultToGlobal", "What holds here, if the subject has nothing of its own.", FLAG)
_PAGE = (
    Parameter("offset", "How many to leave out at the beginning.", whole(minimum=0)),
    Parameter("limit", "How many at most; below 1 is no limit.", INT32),
)


def _doc(
    summary: str, answer: JsonSchema, *parameters: Parameter, body: JsonSchema | None = None, errors: Sequence[int] = ()
) -> Doc:
    return Doc(
        tag=_TAG,
        summary=summary,
        answer=answer,
        parameters=parameters,
        body=body,
        body_type=MEDIA_TYPE,
        answer_type=MEDIA_TYPE,
        errors=(*errors, 422),
    )


_VERSION_PATH = "/subjects/{subject}/versions/{version}"
_CHECKS = "/compatibility/subjects/{subject}/versions"
_NEW = (409,)

SCHEMA_DOCS: dict[tuple[str, str], Doc] = {
    ("GET", "/schemas"): _doc(
        "All schemas",
        array(_VERSION),
        _PREFIX,
        _DELETED,
        Parameter("latestOnly", "Only the latest version of each subject.", FLAG),
        *_PAGE,
    ),
    ("GET", "/schemas/types"): _doc("The kinds of schemas there are", array(TEXT)),
    ("GET", "/schemas/ids/{id:int}"): _doc(
        "A schema by its id",
        _SHOWN,
        _SUBJECT,
        _FORMAT,
        Parameter("fetchMaxId", "Tell the highest id there is as well.", FLAG),
    ),
    ("GET", "/schemas/ids/{id:int}/schema"): _doc("The bare text of a schema by its id", ANYTHING, _SUBJECT, _FORMAT),
    ("GET", "/schemas/ids/{id:int}/subjects"): _doc("Whose schema this is", array(TEXT), _SUBJECT, _DELETED, *_PAGE),
    ("GET", "/schemas/ids/{id:int}/versions"): _doc(
        "Subjects and versions with this schema",
        array(record({"subject": TEXT, "version": INT32})),
        _SUBJECT,
        _DELETED,
        *_PAGE,
    ),
    ("GET", "/contexts"): _doc("The contexts there are", array(TEXT), *_PAGE),
    ("GET", "/subjects"): _doc("The subjects there are", array(TEXT), _PREFIX, _DELETED, _DELETED_ONLY, *_PAGE),
    ("POST", "/subjects/{subject}"): _doc(
        "Whether a subject has this schema, and as which version", _VERSION, _NORMALIZE, _DELETED, body=_SENT
    ),
    ("DELETE", "/subjects/{subject}"): _doc("Delete all versions of a subject", array(INT32), _PERMANENT),
    ("GET", "/subjects/{subject}/metadata"): _doc(
        "The latest version whose metadata has these properties",
        _VERSION,
        Parameter("key", "Name of a property; may be repeated.", TEXT),
        Parameter("value", "Its value; as many as keys.", TEXT),
        _DELETED,
    ),
    ("GET", "/subjects/{subject}/versions"): _doc(
        "The versions of a subject", array(INT32), _DELETED, _DELETED_ONLY, *_PAGE
    ),
    ("POST", "/subjects/{subject}/versions"): _doc(
        "Register a schema", record({"id": INT32}), _NORMALIZE, body=_SENT, errors=_NEW
    ),
    ("GET", _VERSION_PATH): _doc("One version of a subject", _VERSION, _DELETED, _FORMAT),
    ("DELETE", _VERSION_PATH): _doc("Delete one version of a subject", INT32, _PERMANENT),
    ("GET", f"{_VERSION_PATH}/schema"): _doc("The bare text of one version", ANYTHING, _DELETED, _FORMAT),
    ("GET", f"{_VERSION_PATH}/referencedby"): _doc("Ids of the schemas that refer to this one", array(INT32), _DELETED),
    ("POST", _CHECKS): _doc(
        "Whether a schema would fit all versions of a subject",
        _VERDICT,
        _NORMALIZE,
        Parameter("verbose", "Say why not.", FLAG),
        body=_SENT,
    ),
    ("POST", f"{_CHECKS}/{{version}}"): _doc(
        "Whether a schema would fit one version of a subject",
        _VERDICT,
        _NORMALIZE,
        Parameter("verbose", "Say why not.", FLAG),
        body=_SENT,
    ),
}

for _path, _whose in (("", "all subjects"), ("/{subject}", "a subject")):
    SCHEMA_DOCS |= {
        ("GET", f"/config{_path}"): _doc(f"How new schemas of {_whose} must fit the old", _SHOWN_CONFIG, _DEFAULT),
        ("PUT", f"/config{_path}"): _doc(f"Set how new schemas of {_whose} must fit", _SHOWN_CONFIG, body=_CONFIG),
        ("DELETE", f"/config{_path}"): _doc(f"Back to the default for {_whose}", _SHOWN_CONFIG),
        ("GET", f"/mode{_path}"): _doc(f"What may be changed for {_whose}", _MODE, _DEFAULT),
        ("PUT", f"/mode{_path}"): _doc(
            f"Set what may be changed for {_whose}",
            _MODE,
            Parameter("force", "Also where there are schemas already.", FLAG),
            body=_MODE,
        ),
        ("DELETE", f"/mode{_path}"): _doc(f"Back to the default mode for {_whose}", _MODE),
    }
