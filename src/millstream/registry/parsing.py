"""From the text of a schema and its references to a schema that was understood; what was parsed once is kept."""

import threading
from collections import OrderedDict
from collections.abc import Sequence

from millstream.registry.errors import RegistryError, invalid_schema
from millstream.registry.formats.schema import Dependency, InvalidSchemaError, ParsedSchema
from millstream.registry.formats.table import format_named
from millstream.registry.log import SchemaLog
from millstream.registry.records import Reference, StoredSchema
from millstream.registry.state import LATEST, RegistryState, reference_place
from millstream.registry.subjects import Subject

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
        subject, version = reference_place(user, reference.subject, reference.version)
        raise invalid_schema(
            f"reference {reference.name!r} leads to subject {str(subject)!r} version {version}, "
            "which is not there: register it first"
        )
    return stored
