"""Bodies of the registry's routes (Confluent's API): schemas that are sent, schemas that are shown."""

from collections.abc import Sequence
from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType

from millstream.gateway.http.errors import ApiError
from millstream.gateway.http.request import ApiRequest
from millstream.gateway.http.routes import ANYTHING, FLAG, INT32, TEXT, BodyType, Doc, Int32, Parameter, mapping, whole
from millstream.registry.errors import invalid_schema, invalid_version
from millstream.registry.records import Reference, StoredSchema, Subject, parse_subject
from millstream.registry.registering import FORMATS, SchemaRequest
from millstream.registry.registry import Registry
from millstream.registry.state import Level, Mode, resolve_reference

MEDIA_TYPE = "application/vnd.schemaregistry.v1+json"
_MAX_VERSION = 2**31 - 1

_Positive = Annotated[int, Meta(le=_MAX_VERSION, extra_json_schema={"minimum": 1})]
"""Some clients send a number below 1 for none."""
_Type = Annotated[str, Meta(extra_json_schema={"enum": sorted(FORMATS)})]


class SchemaReference(Struct):
    """A schema that another schema uses."""

    name: Annotated[str, Meta(min_length=1, description="The name by which the schema refers to it.")]
    subject: Annotated[str, Meta(min_length=1)]
    version: Int32


class SentSchema(Struct):
    """A schema to register, to look up or to check."""

    schema: Annotated[str, Meta(description="The text of the schema.")]
    schemaType: Annotated[_Type | None, Meta(description="AVRO by default.")] = None  # noqa: N815
    references: list[SchemaReference] | None = None
    metadata: dict[str, Any] | None = None
    ruleSet: dict[str, Any] | None = None  # noqa: N815
    id: Annotated[_Positive | None, Meta(description="Only in mode IMPORT.")] = None
    version: _Positive | None = None


class ShownSchema(Struct, kw_only=True):
    """A schema."""

    schema: str
    schemaType: Annotated[_Type | UnsetType, Meta(description="AVRO by default.")] = UNSET  # noqa: N815
    references: list[SchemaReference] | UnsetType = UNSET
    metadata: dict[str, Any] | UnsetType = UNSET
    ruleSet: dict[str, Any] | UnsetType = UNSET  # noqa: N815
    maxId: Annotated[Int32 | UnsetType, Meta(description="The highest id, with ?fetchMaxId.")] = UNSET  # noqa: N815


class ShownVersion(Struct, kw_only=True):
    """A version of a subject."""

    subject: str
    version: Int32
    id: Int32
    schema: str
    schemaType: Annotated[_Type | UnsetType, Meta(description="AVRO by default.")] = UNSET  # noqa: N815
    references: list[SchemaReference] | UnsetType = UNSET
    metadata: dict[str, Any] | UnsetType = UNSET
    ruleSet: dict[str, Any] | UnsetType = UNSET  # noqa: N815
    deleted: bool | UnsetType = UNSET


class SubjectVersion(Struct):
    """A subject and a version."""

    subject: str
    version: Int32


class SchemaId(Struct):
    """The id of a schema."""

    id: Int32


class CompatibilityConfig(Struct):
    """Settings of a subject, a context or the registry. Fields that are not given stay unchanged."""

    compatibility: Annotated[
        Level | UnsetType,
        Meta(description="How a new version must be compatible with earlier ones."),
    ] = UNSET
    normalize: Annotated[bool | UnsetType, Meta(description="Normalize schemas before they are stored.")] = UNSET


class ModeSetting(Struct):
    """The mode of a subject, a context or the registry."""

    mode: Annotated[
        Mode,
        Meta(description="READWRITE, READONLY, READONLY_OVERRIDE, or IMPORT: schemas are registered with given ids."),
    ]


class CompatibilityResult(Struct):
    """Whether a schema is compatible."""

    is_compatible: bool
    messages: Annotated[list[str] | UnsetType, Meta(description="Why it is not, with ?verbose.")] = UNSET


class ServerScope(Struct):
    """The clusters that this registry belongs to."""

    path: list[str]
    clusters: dict[str, str]


class ServerId(Struct):
    """The identity of this registry."""

    id: str
    scope: ServerScope


class ServerVersion(Struct):
    """The version of the program."""

    version: str
    commitId: str  # noqa: N815


# Requests


def read_subject(req: ApiRequest) -> Subject:
    return parse_subject(req.path("subject"))


def read_version(req: ApiRequest) -> int | None:
    """None is the latest."""
    text = req.path("version")
    if text in ("latest", "-1"):
        return None
    if not text.isdecimal() or len(text) > 10 or not 1 <= int(text) <= _MAX_VERSION:
        raise invalid_version(text)
    return int(text)


def read_request(req: ApiRequest) -> SchemaRequest:
    try:
        sent = req.read(SentSchema, 422)
    except ApiError as error:
        if error.status != 422:
            raise
        raise invalid_schema(f"{error.message}: {error.hint}") from None
    return SchemaRequest(
        sent.schema,
        sent.schemaType or "AVRO",
        tuple(Reference(row.name, row.subject, row.version) for row in sent.references or ()),
        sent.metadata or None,
        sent.ruleSet or None,
        _positive(sent.id),
        _positive(sent.version),
    )


def _positive(number: int | None) -> int | None:
    return number if number is not None and number > 0 else None


# Responses


def shown_content(registry: Registry, schema: StoredSchema, req: ApiRequest) -> dict[str, Any]:
    """The fields of a schema without its subject."""
    form = req.text("format")
    if form and not any(form in format_.forms for format_ in FORMATS.values()):
        known = sorted({form for format_ in FORMATS.values() for form in format_.forms})
        raise ApiError(422, f"?format={form} is unknown: give one of {', '.join(known)}, or leave it out")
    document: dict[str, Any] = {}
    if schema.type != "AVRO":
        document["schemaType"] = schema.type
    fits = schema.type in FORMATS and form in FORMATS[schema.type].forms
    document["schema"] = registry.rendered(schema, form) if fits else schema.text
    if schema.references:
        qualified = req.text("referenceFormat", "reference_format").lower() == "qualified"
        document["references"] = [_shown_reference(schema, row, qualified) for row in schema.references]
    if schema.metadata:
        document["metadata"] = schema.metadata
    if schema.rule_set:
        document["ruleSet"] = schema.rule_set
    return document


def shown_version(registry: Registry, schema: StoredSchema, req: ApiRequest) -> dict[str, Any]:
    document = {"subject": str(schema.subject), "version": schema.version, "id": schema.id}
    document |= shown_content(registry, schema, req)
    return document | {"deleted": True} if schema.deleted else document


def _shown_reference(schema: StoredSchema, reference: Reference, qualified: bool) -> dict[str, Any]:
    document = reference.as_json()
    if qualified:
        document["subject"] = str(resolve_reference(schema.subject, reference.subject, reference.version)[0])
    return document


# Routes

_TAG = "Schema registry"
_CONFIG_SHOWN = mapping(ANYTHING)
_DELETED = Parameter("deleted", "Include soft-deleted versions.", FLAG)
_DELETED_ONLY = Parameter("deletedOnly", "Only soft-deleted versions.", FLAG)
_PERMANENT = Parameter("permanent", "Delete permanently. The version must be soft-deleted first.", FLAG)
_NORMALIZE = Parameter("normalize", "Normalize the schema before it is compared and stored.", FLAG)
_PREFIX = Parameter("subjectPrefix", "Only subjects whose names begin with this; ':*:' is every context.", TEXT)
_SUBJECT = Parameter("subject", "Use the context of this subject.", TEXT)
_FORMAT = Parameter("format", "Another form of the text: resolved (Avro) or serialized (Protobuf).", TEXT)
_DEFAULT = Parameter("defaultToGlobal", "Return the effective setting if the subject has none.", FLAG)
_PAGE = (
    Parameter("offset", "Number of entries to skip.", whole(minimum=0)),
    Parameter("limit", "Maximum number of entries; below 1 is no limit.", INT32),
)


def _doc(
    summary: str, response: BodyType, *parameters: Parameter, body: BodyType | None = None, errors: Sequence[int] = ()
) -> Doc:
    return Doc(
        tag=_TAG,
        summary=summary,
        response=response,
        parameters=parameters,
        body=body,
        body_type=MEDIA_TYPE,
        response_type=MEDIA_TYPE,
        errors=(*errors, 422),
    )


_VERSION_PATH = "/subjects/{subject}/versions/{version}"
_CHECKS = "/compatibility/subjects/{subject}/versions"
_NEW = (409,)

SCHEMA_DOCS: dict[tuple[str, str], Doc] = {
    ("GET", "/schemas"): _doc(
        "List all schemas",
        list[ShownVersion],
        _PREFIX,
        _DELETED,
        Parameter("latestOnly", "Only the latest version of each subject.", FLAG),
        *_PAGE,
    ),
    ("GET", "/schemas/types"): _doc("List the supported schema types", list[str]),
    ("GET", "/schemas/ids/{id:int}"): _doc(
        "Get a schema by id",
        ShownSchema,
        _SUBJECT,
        _FORMAT,
        Parameter("fetchMaxId", "Also return the highest id.", FLAG),
    ),
    ("GET", "/schemas/ids/{id:int}/schema"): _doc("Get the text of a schema by id", ANYTHING, _SUBJECT, _FORMAT),
    ("GET", "/schemas/ids/{id:int}/subjects"): _doc(
        "List the subjects with this schema", list[str], _SUBJECT, _DELETED, *_PAGE
    ),
    ("GET", "/schemas/ids/{id:int}/versions"): _doc(
        "List the subjects and versions with this schema",
        list[SubjectVersion],
        _SUBJECT,
        _DELETED,
        *_PAGE,
    ),
    ("GET", "/v1/metadata/id"): _doc("Get the identity of the registry", ServerId),
    ("GET", "/v1/metadata/version"): _doc("Get the version of the registry", ServerVersion),
    ("GET", "/contexts"): _doc("List the contexts", list[str], *_PAGE),
    ("GET", "/subjects"): _doc("List the subjects", list[str], _PREFIX, _DELETED, _DELETED_ONLY, *_PAGE),
    ("POST", "/subjects/{subject}"): _doc(
        "Look up a schema in a subject", ShownVersion, _NORMALIZE, _DELETED, body=SentSchema
    ),
    ("DELETE", "/subjects/{subject}"): _doc("Delete all versions of a subject", list[Int32], _PERMANENT),
    ("GET", "/subjects/{subject}/metadata"): _doc(
        "Get the latest version whose metadata has these properties",
        ShownVersion,
        Parameter("key", "Name of a property; may be repeated.", TEXT),
        Parameter("value", "Value of a property; one for each key.", TEXT),
        _DELETED,
    ),
    ("GET", "/subjects/{subject}/versions"): _doc(
        "List the versions of a subject", list[Int32], _DELETED, _DELETED_ONLY, *_PAGE
    ),
    ("POST", "/subjects/{subject}/versions"): _doc(
        "Register a schema", SchemaId, _NORMALIZE, body=SentSchema, errors=_NEW
    ),
    ("GET", _VERSION_PATH): _doc("Get a version of a subject", ShownVersion, _DELETED, _FORMAT),
    ("DELETE", _VERSION_PATH): _doc("Delete a version of a subject", Int32, _PERMANENT),
    ("GET", f"{_VERSION_PATH}/schema"): _doc("Get the text of a version", ANYTHING, _DELETED, _FORMAT),
    ("GET", f"{_VERSION_PATH}/referencedby"): _doc(
        "List the ids of schemas that refer to this version", list[Int32], _DELETED
    ),
    ("POST", _CHECKS): _doc(
        "Check whether a schema is compatible with a subject",
        CompatibilityResult,
        _NORMALIZE,
        Parameter("verbose", "Return the reasons.", FLAG),
        body=SentSchema,
    ),
    ("POST", f"{_CHECKS}/{{version}}"): _doc(
        "Check whether a schema is compatible with one version",
        CompatibilityResult,
        _NORMALIZE,
        Parameter("verbose", "Return the reasons.", FLAG),
        body=SentSchema,
    ),
}

for _path, _whose in (("", "all subjects"), ("/{subject}", "a subject")):
    SCHEMA_DOCS |= {
        ("GET", f"/config{_path}"): _doc(f"Get the compatibility level of {_whose}", _CONFIG_SHOWN, _DEFAULT),
        ("PUT", f"/config{_path}"): _doc(
            f"Set the compatibility level of {_whose}", _CONFIG_SHOWN, body=CompatibilityConfig
        ),
        ("DELETE", f"/config{_path}"): _doc(f"Reset the compatibility level of {_whose}", _CONFIG_SHOWN),
        ("GET", f"/mode{_path}"): _doc(f"Get the mode of {_whose}", ModeSetting, _DEFAULT),
        ("PUT", f"/mode{_path}"): _doc(
            f"Set the mode of {_whose}",
            ModeSetting,
            Parameter("force", "Also if schemas exist.", FLAG),
            body=ModeSetting,
        ),
        ("DELETE", f"/mode{_path}"): _doc(f"Reset the mode of {_whose}", ModeSetting),
    }
