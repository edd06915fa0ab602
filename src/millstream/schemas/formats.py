"""Formats of keys and values by name, and the schema that a format reads and writes with.

    format = make_format("avro", role="value", topic="orders", options={"registry.url": "http://localhost:8081"})
    format.arrow_type()                   # a struct type; the schema is chosen here, once
    rows, errors = format.decode(values)  # struct array, and a text for each record that could not be decoded
    format.encode(rows)                   # binary array

The schema is the given one, or the latest of the subject. It is chosen once, when the query is planned, and pickled
with the format: all tasks of a query have the same columns, whatever is registered later.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from millstream.common.close_match import did_you_mean
from millstream.schemas.errors import RegistryError, SchemaError, SchemaNotFoundError
from millstream.schemas.registry_client import RegistryAuth, RegistryClient, Schema

_MAX_REFERENCES = 200


@dataclass(frozen=True, slots=True)
class ResolvedSchema:
    """A schema with the texts of its references; references come after their own references."""

    text: str
    kind: str
    references: tuple[tuple[str, str], ...] = ()
    """(name, text)"""


def resolve(client: RegistryClient, schema: Schema, *, serialized: bool = False) -> ResolvedSchema:
    found: dict[str, str] = {}

    def follow(each: Schema) -> None:
        for reference in each.references:
            if reference.name in found:
                continue
            if len(found) >= _MAX_REFERENCES:
                raise SchemaError(f"The schema refers to more than {_MAX_REFERENCES} others.")
            registered = client.version(reference.subject, reference.version)
            follow(registered.schema)
            text = client.serialized_by_id(registered.id).text if serialized else registered.schema.text
            found[reference.name] = text

    follow(schema)
    return ResolvedSchema(schema.text, schema.kind, tuple(found.items()))


@dataclass(frozen=True, slots=True)
class SchemaChoice:
    kind: str
    """AVRO, JSON or PROTOBUF."""
    subject: str | None
    given: str | None
    """The text of the schema, if the user gave one."""
    client: RegistryClient | None
    may_register: bool
    role: str = "value"
    """The name of the column if the schema is not a record."""

    def reader(self) -> ResolvedSchema:
        """The schema that determines the columns."""
        if self.given is not None:
            return ResolvedSchema(self.given, self.kind)
        if self.client is None:
            raise SchemaError(
                f"The format {self.kind.lower()} needs a schema: give it, or the schema registry's address."
            )
        registered = self.client.latest(self._subject())
        self._check_kind(registered.schema)
        if self.kind == "PROTOBUF":
            return resolve(self.client, self.client.serialized_by_id(registered.id), serialized=True)
        return resolve(self.client, registered.schema)

    def by_id(self, schema_id: int) -> ResolvedSchema:
        """The schema with which a record was written."""
        assert self.client is not None, "only records of a registry have schema ids"
        serialized = self.kind == "PROTOBUF"
        schema = self.client.serialized_by_id(schema_id) if serialized else self.client.schema_by_id(schema_id)
        self._check_kind(schema)
        return resolve(self.client, schema, serialized=serialized)

    def writer(self, made: str | None) -> tuple[ResolvedSchema, int | None]:
        """The schema to write with and its id: the given one, the latest, or `made` (from the columns' types), which
        is registered if that is allowed. Without a registry there is no id and no prefix."""
        text = self.given if self.given is not None else made
        if self.client is None:
            if text is None:
                raise SchemaError(
                    f"Writing {self.kind.lower()} needs a schema: give it, or the schema registry's address."
                )
            return ResolvedSchema(text, self.kind), None
        subject = self._subject()
        if self.given is None:
            try:
                registered = self.client.latest(subject)
            except SchemaNotFoundError:
                if made is None or not self.may_register:
                    raise
            else:
                self._check_kind(registered.schema)
                return self.reader() if self.kind == "PROTOBUF" else resolve(
                    self.client, registered.schema
                ), registered.id
        assert text is not None
        schema = Schema(text, self.kind)
        if self.may_register:
            return ResolvedSchema(text, self.kind), self.client.register(subject, schema)
        known = self.client.lookup(subject, schema)
        if known is None:
            raise RegistryError(
                f"Subject {subject!r} at {self.client.urls[0]} does not have this schema, and registering is not "
                "allowed; register it first, or allow it."
            )
        return ResolvedSchema(text, self.kind), known.id

    def _subject(self) -> str:
        if self.subject is None:
            raise SchemaError("The subject is not known: read a single topic, or set the subject.")
        return self.subject

    def _check_kind(self, schema: Schema) -> None:
        if schema.kind != self.kind:
            raise SchemaError(
                f"The format is {self.kind.lower()}, but the registry's schema is {schema.kind.lower()}; "
                f"choose the format {schema.kind.lower()}."
            )


FORMATS = ("json", "avro", "protobuf")

OPTIONS = {
    "schema": "the schema itself: Spark DDL or a StructType's JSON or JSON Schema (json), Avro, .proto text",
    "subject": "the registry's subject; default: <topic>-key or <topic>-value",
    "message": "protobuf: the message's name; default: the first of the file",
    "register": "whether a schema may be registered when writing (true, false; default true)",
    "registry.url": "address of the schema registry; several are separated by commas",
    "registry.user": "user name at the registry",
    "registry.password": "the user's password",
    "registry.token": "bearer token, instead of user and password",
    "registry.ca": "PEM file with the certificates to trust",
    "registry.timeout.ms": "timeout of a request, retries included (default 20000)",
}


class Format(Protocol):
    def arrow_type(self) -> pa.StructType:
        """The columns; all of them nullable, the same on every call."""
        ...

    def keep_only(self, names: frozenset[str]) -> None:
        """Leaves other columns out, and decodes as little of them as possible."""
        ...

    def decode(self, values: pa.Array) -> tuple[pa.Array, pa.Array]:
        """Typed rows, and for each row null or the reason for which it cannot be decoded (then the row is null). A null
        value is a null row without an error. Raises only if the registry cannot be reached."""
        ...

    def encode(self, rows: pa.Array) -> pa.Array:
        """The bytes of the rows; null for null rows. EncodingError names the row that does not fit."""
        ...


def make_format(
    kind: str,
    *,
    role: str = "value",
    topic: str | None = None,
    subject: str | None = None,
    registry_url: str | None = None,
    options: Mapping[str, str] | None = None,
) -> Format:
    """A format by name. `role`: key or value; `options` as in OPTIONS. SchemaError says what is wrong with them."""
    given = dict(options or {})
    for name in given:
        if name not in OPTIONS:
            hint = did_you_mean(name, OPTIONS, cutoff=0.5, otherwise=", ".join(OPTIONS))
            raise SchemaError(f"A format has no option {name!r}; {hint}")
    if kind not in FORMATS:
        hint = did_you_mean(kind, FORMATS, cutoff=0.4, otherwise=f"there are {', '.join(FORMATS)}.")
        raise SchemaError(f"There is no format {kind!r}; {hint}")
    if role not in ("key", "value"):
        raise SchemaError(f"The role must be key or value, not {role!r}.")
    subject = subject or given.get("subject") or (f"{topic}-{role}" if topic else None)
    url = registry_url or given.get("registry.url")
    choice = SchemaChoice(
        kind.upper(),
        subject,
        given.get("schema"),
        client_of(url, given) if url else None,
        _boolean(given, "register"),
        role,
    )
    if choice.client is None and choice.given is None:
        raise SchemaError(
            f"The format {kind} needs a schema: give the address of the schema registry, or the schema itself."
        )
    # Imported on use: they need fastavro, orjson and protobuf.
    if kind == "json":
        from millstream.schemas.json_format import JsonFormat

        return JsonFormat(choice)
    if kind == "avro":
        from millstream.schemas.avro_format import AvroFormat

        return AvroFormat(choice)
    from millstream.schemas.protobuf_format import ProtobufFormat

    return ProtobufFormat(choice, given.get("message"))


def client_of(url: str, options: Mapping[str, str]) -> RegistryClient:
    if "registry.token" in options and "registry.user" in options:
        raise SchemaError("Give registry.user and registry.password, or registry.token, not both.")
    auth = RegistryAuth(
        options.get("registry.user"), options.get("registry.password", ""), options.get("registry.token")
    )
    timeout = options.get("registry.timeout.ms", "20000")
    if not timeout.isdigit() or not int(timeout):
        raise SchemaError(f"registry.timeout.ms is {timeout!r}; it must be a number of milliseconds.")
    return RegistryClient(url, auth, timeout_s=int(timeout) / 1000, ca_file=options.get("registry.ca"))


def _boolean(options: Mapping[str, str], name: str) -> bool:
    text = options.get(name, "true").lower()
    if text not in ("true", "false"):
        raise SchemaError(f"{name} is {text!r}; it must be true or false.")
    return text == "true"
