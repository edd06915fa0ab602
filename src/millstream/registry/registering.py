"""Registering schemas: what is there already, what may follow it, and which version and id a new one gets.

Which stored schemas are the same as one that is sent, though their texts differ.

Other registries write canonical texts of their own. A schema that came from one of them keeps its id: it is found by
what it says, not by its letters. Parsing every stored schema would take long, so only those are parsed that have the
same words.

Whether a schema may follow those before it, at a level of compatibility; the reasons if not.

From the text of a schema and its references to a schema that was understood; what was parsed once is kept.

The formats that the registry knows, by the names that requests use.
"""

import difflib
import re
import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

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
        near = difflib.get_close_matches(name.upper(), FORMATS, n=1, cutoff=0.4)
        hint = f"did you mean {near[0]}?" if near else f"give one of {', '.join(FORMATS)}"
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
        """RegistryError 42201 if the schema or one that it refers to cannot be understood or is not there."""
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
        """The references with a number for "latest": what a schema means must not change with a schema it refers to."""
        with self._log.lock:
            return tuple(
                reference._replace(version=referred_to(self._log.state, user, reference).version)
                if reference.version == LATEST
                else reference
                for reference in references
            )

    def parse_stored(self, schema: StoredSchema) -> ParsedSchema:
        return self.parse(schema.subject, schema.type, schema.text, schema.references)

    def understands(self, schema: StoredSchema) -> str | None:
        """None, or why not: other registries may know formats that this one does not."""
        try:
            self.parse_stored(schema)
        except RegistryError as error:
            return error.message
        return None

    def _collect(
        self, user: Subject, type_: str, references: Sequence[Reference], found: dict[str, str], path: tuple[str, ...]
    ) -> None:
        """Those that are referred to, and what they refer to before them."""
        for reference in references:
            if reference.name in found:
                continue
            if reference.name in path:
                raise invalid_schema(f"references go in a circle: {' → '.join((*path, reference.name))}")
            with self._log.lock:
                stored = referred_to(self._log.state, user, reference)
            if stored.type != type_:
                raise invalid_schema(
                    f"reference {reference.name!r} leads to a schema of type {stored.type}, not {type_}"
                )
            self._collect(stored.subject, type_, stored.references, found, (*path, reference.name))
            found[reference.name] = stored.text


def referred_to(state: RegistryState, user: Subject, reference: Reference) -> StoredSchema:
    """The version that a reference leads to; RegistryError 42201 if it is not there."""
    stored = state.referred_to(user, reference)
    if stored is None:
        subject, version = resolve_reference(user, reference.subject, reference.version)
        raise invalid_schema(
            f"reference {reference.name!r} leads to subject {str(subject)!r} version {version}, "
            "which is not there: register it first"
        )
    return stored


def incompatibilities(
    parser: SchemaParser, level: Level, type_: str, candidate: ParsedSchema, earlier: Sequence[StoredSchema]
) -> list[str]:
    """`earlier` in the order of versions. Without a transitive level only the last of them counts."""
    for version in versions_to_compare(level, earlier):
        found = _obstacles_of_one(parser, level, type_, candidate, version)
        if found:
            return [*found, f"compared with version {version.version} of {version.subject} at level {level}"]
    return []


def versions_to_compare(level: Level, earlier: Sequence[StoredSchema]) -> list[StoredSchema]:
    """The versions that a new one is compared with, the newest first."""
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
        return [f"UNREADABLE at /: version {version.version} cannot be compared with: {error.message}"]
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
    """The same for texts that differ in layout alone: of Protobuf the numbered names, of the others all words."""
    if type_ == "PROTOBUF":
        return hash(tuple(sorted(_NUMBERED.findall(text))))
    return hash(frozenset(_WORD.findall(text)))


class Equivalence:
    """One schema that is sent, and the question whether others are the same."""

    def __init__(self, parser: SchemaParser, subject: Subject, parsed: ParsedSchema, content: Content, normalize: bool):
        self._parser = parser
        self._subject = subject
        self._parsed = parsed
        self._content = content
        self._normalize = normalize

    def first(self, contents: Iterable[tuple[int, Content]]) -> int | None:
        """The first of these ids whose content is the same."""
        return next((schema_id for schema_id, content in contents if self.holds(content)), None)

    def holds(self, stored: Content) -> bool:
        mine = self._content
        if stored == mine:
            return True
        if stored._replace(text="") != mine._replace(text=""):
            return False
        # The author's words, not those of the normal form, which may have left some out.
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
    """A schema as somebody sends it."""

    text: str
    type: str = "AVRO"
    references: tuple[Reference, ...] = ()
    metadata: dict[str, Any] | None = None
    rule_set: dict[str, Any] | None = None
    id: int | None = None
    version: int | None = None


@dataclass(frozen=True, slots=True)
class Candidate:
    """A request understood: what would be stored of it."""

    type: str
    parsed: ParsedSchema
    content: Content
    same: Equivalence


class Registrar:
    def __init__(self, log: SchemaLog, parser: SchemaParser) -> None:
        self._log = log
        self._parser = parser

    def understand(self, subject: Subject, request: SchemaRequest, normalize: bool) -> Candidate:
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
        return Candidate(type_, parsed, content, Equivalence(self._parser, subject, parsed, content, normalize))

    def find(self, subject: Subject, candidate: Candidate, *, deleted: bool = False) -> StoredSchema | None:
        """The version of the subject that is this schema; the newest if there are several."""
        with self._log.lock:
            versions = self._log.state.versions(subject, deleted=deleted)
        return _find(versions, candidate)

    def register(self, subject: Subject, request: SchemaRequest, normalize: bool = False) -> StoredSchema:
        """The version that is this schema now, whether it was there or not."""
        candidate = self.understand(subject, request, normalize)
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
                referred_to(state, subject, reference)  # it may have been deleted since the schema was parsed
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
        # An id stands for one text: what other registries have written is kept to the letter.
        known = state.content(subject.context, schema_id) if schema_id else None
        if known is not None and not candidate.same.holds(known):
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
        """Parses before the state is locked for the decision what the decision will look at."""
        with self._log.lock:
            state = self._log.state
            earlier = versions_to_compare(level_of(state, subject), state.versions(subject))
            contents = state.contents(subject.context)
        candidate.same.first(contents)
        for version in earlier:
            self._parser.understands(version)


def check_rules(candidate: Candidate) -> None:
    """What is stored already may be looked up whatever it is; what is new must keep the rules of its format."""
    flaw = candidate.parsed.flaw()
    if flaw is not None:
        raise invalid_schema(flaw)


def _find(versions: list[StoredSchema], candidate: Candidate) -> StoredSchema | None:
    """The newest of them that is the candidate: to the letter if there is one."""
    exact = next((row for row in reversed(versions) if row.content == candidate.content), None)
    return exact or next((row for row in reversed(versions) if candidate.same.holds(row.content)), None)


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
    """An import may replace a version. Schemas that refer to it would mean something else from then on, also those that
    are soft deleted, which still serve requests by id. Confluent's registry does not check that."""
    replaced = state.version(subject, version)
    mine = candidate.content
    if replaced is None or candidate.same.holds(
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
    # A deleted version is kept for requests by id, which the new version serves from now on. But references go by
    # version: one that another schema refers to, deleted or not, must stay.
    entries += [
        Entry(Key(Kind.SCHEMA, schema.subject, row.version), None)
        for row in state.versions(schema.subject, deleted=True)
        if row.deleted
        and row.id == schema.id
        and row.version < schema.version
        and not state.referencing(row.subject, row.version, deleted=True)
    ]
    return entries
