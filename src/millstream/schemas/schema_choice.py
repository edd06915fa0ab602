"""Which schema a format reads and writes with: the one that was given, or the registry's latest of the subject.

Chosen once, where the query is planned, and carried from there: all tasks of a query see the same columns, whatever is
registered meanwhile.
"""

from dataclasses import dataclass

from millstream.schemas.errors import RegistryError, SchemaError, SchemaNotFoundError
from millstream.schemas.registry_client import RegistryClient, Schema

_MAX_REFERENCES = 200


@dataclass(frozen=True, slots=True)
class ResolvedSchema:
    """A schema with the text of all that it refers to, those first that others need."""

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
    """The text of a schema, where the user gave one."""
    client: RegistryClient | None
    may_register: bool
    role: str = "value"
    """Names the column of a schema that is no record."""

    def reader(self) -> ResolvedSchema:
        """The schema that columns are made after."""
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
        """The schema that a record says it was written with."""
        assert self.client is not None, "only records of a registry have ids"
        serialized = self.kind == "PROTOBUF"
        schema = self.client.serialized_by_id(schema_id) if serialized else self.client.schema_by_id(schema_id)
        self._check_kind(schema)
        return resolve(self.client, schema, serialized=serialized)

    def writer(self, made: str | None) -> tuple[ResolvedSchema, int | None]:
        """The schema to write with and its id: the given one or `made` (from the columns' types), registered if that
        is allowed; else the latest. Without a registry there is no id, and no prefix."""
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
            raise SchemaError("The schema registry is asked by subject: read a single topic, or name the subject.")
        return self.subject

    def _check_kind(self, schema: Schema) -> None:
        if schema.kind != self.kind:
            raise SchemaError(
                f"The format is {self.kind.lower()}, but the registry's schema is {schema.kind.lower()}; "
                f"choose the format {schema.kind.lower()}."
            )
