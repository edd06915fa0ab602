"""Registers schemas: parses them, finds equal ones, checks compatibility, and assigns versions and ids.

Other registries write their own canonical texts. So a schema that differs only in its text keeps its id: it is found by
its content. To avoid parsing all stored schemas, only those with the same words are parsed.
"""

import re
import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from millstream.common.close_match import did_you_mean
from millstream.registry.avro.schema import AvroFormat
from millstream.registry.errors import (
    RegistryError,
    id_taken,
    incompatible,
    invalid_schema,
    not_permitted,
    replaces_referenced,
)
from millstream.registry.formats import Dependency, InvalidSchemaError, ParsedSchema, SchemaFormat
from millstream.registry.json_schema.schema import JsonSchemaFormat
from millstream.registry.log import SchemaLog
from millstream.registry.protobuf.schema import ProtobufFormat
from millstream.registry.records import (
    Content,
    Entry,
    Key,
    Kind,
    Reference,
    StoredSchema,
    Subject,
    content_of,
    schema_entry,
)
from millstream.registry.state import (
    LATEST,
    NORMALIZE,
    Level,
    Mode,
    RegistryState,
    level_of,
    mode_of,
    resolve_reference,
    setting,
)

FORMATS: dict[str, SchemaFormat] = {
    "JSON": JsonSchemaFormat(),
    "PROTOBUF": ProtobufFormat(),
    "AVRO": AvroFormat(),
}


def format_named(name: str) -> SchemaFormat:
    """By its name in any case; a refusal that names the nearest otherwise."""
    found = FORMATS.get(name.upper())
    if found is None:
        hint = did_you_mean(name, FORMATS, cutoff=0.4, otherwise=f"give one of {', '.join(FORMATS)}", quoted=False)
        raise invalid_schema(f"there is no schema type {name!r}: {hint}")
    return found


_KEPT = 1_000


class SchemaParser:
    """Thread safe."""

    def __init__(self, log: SchemaLog) -> None:
        self._log = log
        self._parsed: OrderedDict[tuple[str, str, tuple[Dependency, ...]], ParsedSchema] = OrderedDict()
        self._lock = threading.Lock()

    def parse(self, subject: Subject, type_: str, text: str, references: Sequence[Reference]) -> ParsedSchema:
        """RegistryError 42201 if the schema or a referenced one is invalid or missing."""
        dependencies: dict[str, str] = {}
        self._collect(subject, type_, references, dependencies, ())
        wanted = (type_, text, tuple(Dependency(*row) for row in dependencies.items()))
        with self._lock:
            if wanted in self._parsed:
                self._parsed.move_to_end(wanted)
                return self._parsed[wanted]
        try:
            parsed = format_named(type_).parse(text, wanted[2])
        except InvalidSchemaError as error:
            raise invalid_schema(str(error)) from error
        with self._lock:
            self._parsed[wanted] = parsed
            while len(self._parsed) > _KEPT:
                self._parsed.popitem(last=False)
        return parsed

    def pinned(self, user: Subject, references: Sequence[Reference]) -> tuple[Reference, ...]:
        """The references with a number for "latest", so that the meaning of a schema never changes."""
        with self._log.lock:
            return tuple(
                reference._replace(version=referred_to(self._log.state, user, reference).version)
                if reference.version == LATEST
                else reference
                for reference in references
            )

    def parse_stored(self, schema: StoredSchema) -> ParsedSchema:
        return self.parse(schema.subject, schema.type, schema.text, schema.references)

    def parse_error(self, schema: StoredSchema) -> str | None:
        """Why a stored schema cannot be parsed, or None. Other registries may support more formats."""
        try:
            self.parse_stored(schema)
        except RegistryError as error:
            return error.message
        return None

    def _collect(
        self, user: Subject, type_: str, references: Sequence[Reference], found: dict[str, str], path: tuple[str, ...]
    ) -> None:
        """Collects the referenced schemas, each after the schemas that it references."""
        for reference in references:
            if reference.name in found:
                continue
            if reference.name in path:
                raise invalid_schema(f"the references form a cycle: {' → '.join((*path, reference.name))}")
            with self._log.lock:
                stored = referred_to(self._log.state, user, reference)
            if stored.type != type_:
                raise invalid_schema(f"reference {reference.name!r} is a schema of type {stored.type}, not {type_}")
            self._collect(stored.subject, type_, stored.references, found, (*path, reference.name))
            found[reference.name] = stored.text


def referred_to(state: RegistryState, user: Subject, reference: Reference) -> StoredSchema:
    """The version of a reference; RegistryError 42201 if it does not exist."""
    stored = state.referred_to(user, reference)
    if stored is None:
        subject, version = resolve_reference(user, reference.subject, reference.version)
        raise invalid_schema(
            f"reference {reference.name!r} names subject {str(subject)!r} version {version}, "
            "which does not exist: register it first"
        )
    return stored


def incompatibilities(
    parser: SchemaParser, level: Level, type_: str, candidate: ParsedSchema, earlier: Sequence[StoredSchema]
) -> list[str]:
    """Why the candidate is not compatible. `earlier` is in the order of versions."""
    for version in versions_to_compare(level, earlier):
        found = _obstacles_of_one(parser, level, type_, candidate, version)
        if found:
            return [*found, f"compared with version {version.version} of {version.subject} at level {level}"]
    return []


def versions_to_compare(level: Level, earlier: Sequence[StoredSchema]) -> list[StoredSchema]:
    """The versions that a new one is compared with, newest first."""
    if level is Level.NONE:
        return []
    return list(reversed(earlier if level.transitive else earlier[-1:]))


def _obstacles_of_one(
    parser: SchemaParser, level: Level, type_: str, candidate: ParsedSchema, version: StoredSchema
) -> list[str]:
    if version.type != type_:
        return [
            f"TYPE_CHANGED at /: version {version.version} is {version.type}, the new schema is {type_}: "
            "use another subject"
        ]
    try:
        before = parser.parse_stored(version)
    except RegistryError as error:
        return [f"UNREADABLE at /: version {version.version} cannot be parsed: {error.message}"]
    messages = []
    if level.new_reads_old:
        messages += [f"the new schema cannot read old data: {row}" for row in candidate.problems_reading(before)]
    if level.old_reads_new:
        messages += [f"the old schema cannot read new data: {row}" for row in before.problems_reading(candidate)]
    return messages


_WORD = re.compile(r"\w+")
_NUMBERED = re.compile(r"(\w+)\s*=\s*(-?\d+)")


@lru_cache(maxsize=20_000)
def _words(type_: str, text: str) -> int:
    """Equal for texts that differ only in layout: numbered names for Protobuf, all words for other formats."""
    if type_ == "PROTOBUF":
        return hash(tuple(sorted(_NUMBERED.findall(text))))
    return hash(frozenset(_WORD.findall(text)))


class SchemaMatcher:
    """Compares one schema with stored ones."""

    def __init__(self, parser: SchemaParser, subject: Subject, parsed: ParsedSchema, content: Content, normalize: bool):
        self._parser = parser
        self._subject = subject
        self._parsed = parsed
        self._content = content
        self._normalize = normalize

    def first(self, contents: Iterable[tuple[int, Content]]) -> int | None:
        """The first of these ids with an equal content."""
        return next((schema_id for schema_id, content in contents if self.matches(content)), None)

    def matches(self, stored: Content) -> bool:
        mine = self._content
        if stored == mine:
            return True
        if stored._replace(text="") != mine._replace(text=""):
            return False
        # The words of the original text: the normal form may omit some.
        texts = {mine.text, self._parsed.canonical}
        if _words(stored.type, stored.text) not in {_words(mine.type, text) for text in texts}:
            return False
        try:
            other = self._parser.parse(self._subject, stored.type, stored.text, stored.references)
        except RegistryError:
            return False
        if self._normalize:
            return other.normalized() == self._parsed.normalized()
        return other.canonical == self._parsed.canonical


@dataclass(frozen=True, slots=True)
class SchemaRequest:
    """A schema in a request."""

    text: str
    type: str = "AVRO"
    references: tuple[Reference, ...] = ()
    metadata: dict[str, Any] | None = None
    rule_set: dict[str, Any] | None = None
    id: int | None = None
    version: int | None = None


@dataclass(frozen=True, slots=True)
class Candidate:
    """A parsed request: what would be stored."""

    type: str
    parsed: ParsedSchema
    content: Content
    same: SchemaMatcher


class Registrar:
    def __init__(self, log: SchemaLog, parser: SchemaParser) -> None:
        self._log = log
        self._parser = parser

    def parse_request(self, subject: Subject, request: SchemaRequest, normalize: bool) -> Candidate:
        type_ = format_named(request.type).name
        if not request.text.strip():
            raise invalid_schema("the schema is empty: send its text in the field 'schema'")
        parsed = self._parser.parse(subject, type_, request.text, request.references)
        with self._log.lock:
            normalize = normalize or bool(setting(self._log.state, subject, NORMALIZE))
        text = parsed.normalized() if normalize else parsed.canonical
        references = self._parser.pinned(subject, request.references)
        if normalize:
            references = tuple(sorted(references))
        content = content_of(type_, text, references, request.metadata, request.rule_set)
        return Candidate(type_, parsed, content, SchemaMatcher(self._parser, subject, parsed, content, normalize))

    def find(self, subject: Subject, candidate: Candidate, *, deleted: bool = False) -> StoredSchema | None:
        """The version of the subject with this schema; the newest if there are several."""
        with self._log.lock:
            versions = self._log.state.versions(subject, deleted=deleted)
        return _find(versions, candidate)

    def register(self, subject: Subject, request: SchemaRequest, normalize: bool = False) -> StoredSchema:
        """The version with this schema, new or existing."""
        candidate = self.parse_request(subject, request, normalize)
        if request.id is None and request.version is None:
            there = self.find(subject, candidate)
            if there is not None:
                return there
        check_rules(candidate)
        self._parse_earlier(subject, candidate)
        registered: list[StoredSchema] = []

        def decide(state: RegistryState) -> list[Entry]:
            registered.clear()
            mode = mode_of(state, subject)
            _check_mode(subject, mode, request)
            there = _find(state.versions(subject), candidate)
            if there is not None and request.id in (None, there.id) and request.version in (None, there.version):
                registered.append(there)
                return []
            for reference in candidate.content.references:
                referred_to(state, subject, reference)  # it may have been deleted meanwhile
            schema = self._new_version(state, subject, request, candidate, mode)
            registered.append(schema)
            return _entries(state, schema)

        self._log.write(decide)
        return registered[0]

    def _new_version(
        self, state: RegistryState, subject: Subject, request: SchemaRequest, candidate: Candidate, mode: Mode
    ) -> StoredSchema:
        every = state.versions(subject, deleted=True)
        if mode is not Mode.IMPORT:
            live = [version for version in every if not version.deleted]
            found = incompatibilities(self._parser, level_of(state, subject), candidate.type, candidate.parsed, live)
            if found:
                raise incompatible(found)
        version = every[-1].version + 1 if every else 1
        if request.version is not None:
            if mode is not Mode.IMPORT and request.version != version:
                raise invalid_schema(f"version {request.version} is not one more than the last: leave it out")
            version = request.version
            _check_users(state, subject, version, candidate)
        schema_id = request.id or _known_id(state, subject, candidate)
        # An id has one text: a text that another registry wrote is kept unchanged.
        known = state.content(subject.context, schema_id) if schema_id else None
        if known is not None and not candidate.same.matches(known):
            raise id_taken(schema_id or 0)
        content = known or candidate.content
        return StoredSchema(
            subject,
            version,
            schema_id or state.next_id(subject.context),
            candidate.type,
            content.text,
            content.references,
            request.metadata or None,
            request.rule_set or None,
        )

    def _parse_earlier(self, subject: Subject, candidate: Candidate) -> None:
        """Parses the schemas that the decision needs, before the state is locked."""
        with self._log.lock:
            state = self._log.state
            earlier = versions_to_compare(level_of(state, subject), state.versions(subject))
            contents = state.contents(subject.context)
        candidate.same.first(contents)
        for version in earlier:
            self._parser.parse_error(version)


def check_rules(candidate: Candidate) -> None:
    """A new schema must follow the rules of its format. Stored schemas may be looked up even if they do not."""
    rule_violation = candidate.parsed.rule_violation()
    if rule_violation is not None:
        raise invalid_schema(rule_violation)


def _find(versions: list[StoredSchema], candidate: Candidate) -> StoredSchema | None:
    """The newest version that equals the candidate; one with the same text is preferred."""
    exact = next((row for row in reversed(versions) if row.content == candidate.content), None)
    return exact or next((row for row in reversed(versions) if candidate.same.matches(row.content)), None)


def _known_id(state: RegistryState, subject: Subject, candidate: Candidate) -> int | None:
    exact = state.id_of(subject.context, candidate.content)
    return exact or candidate.same.first(state.contents(subject.context))


def _check_mode(subject: Subject, mode: Mode, request: SchemaRequest) -> None:
    if mode.read_only:
        raise not_permitted(f"subject {str(subject)!r} is in mode {mode}: PUT /mode/SUBJECT sets another")
    if request.id is not None and mode is not Mode.IMPORT:
        raise not_permitted(f"subject {str(subject)!r} is not in import mode: PUT /mode/SUBJECT IMPORT, or send no id")
    if request.id is None and mode is Mode.IMPORT:
        raise not_permitted(f"subject {str(subject)!r} is in import mode: send an id, or PUT /mode/SUBJECT READWRITE")


def _check_users(state: RegistryState, subject: Subject, version: int, candidate: Candidate) -> None:
    """An import may replace a version. That would change the meaning of schemas that refer to it, also of soft-deleted
    ones, which are still served by id. Confluent's registry does not check that."""
    replaced = state.version(subject, version)
    mine = candidate.content
    if replaced is None or candidate.same.matches(
        replaced.content._replace(metadata=mine.metadata, rule_set=mine.rule_set)
    ):
        return
    users = sorted({user.id for user in state.referencing(subject, version, deleted=True)})
    if users:
        raise replaces_referenced(str(subject), version, users)


def _entries(state: RegistryState, schema: StoredSchema) -> list[Entry]:
    entries = []
    context = schema.subject.context
    if context not in state.contexts():
        entries.append(
            Entry(Key(Kind.CONTEXT, schema.subject.whole_context), {"tenant": "default", "context": context})
        )
    entries.append(schema_entry(schema))
    # A soft-deleted version is kept for requests by id, which the new version serves from now on. But references use
    # versions: one that another schema refers to, deleted or not, must stay.
    entries += [
        Entry(Key(Kind.SCHEMA, schema.subject, row.version), None)
        for row in state.versions(schema.subject, deleted=True)
        if row.deleted
        and row.id == schema.id
        and row.version < schema.version
        and not state.referencing(row.subject, row.version, deleted=True)
    ]
    return entries
