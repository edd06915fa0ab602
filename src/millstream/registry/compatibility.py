"""Whether a schema may follow those before it, at a level of compatibility; the reasons if not."""

from collections.abc import Sequence

from millstream.registry.errors import RegistryError
from millstream.registry.formats.schema import ParsedSchema
from millstream.registry.levels import Level
from millstream.registry.parsing import SchemaParser
from millstream.registry.records import StoredSchema


def obstacles(
    parser: SchemaParser, level: Level, type_: str, candidate: ParsedSchema, earlier: Sequence[StoredSchema]
) -> list[str]:
    """`earlier` in the order of versions. Without a transitive level only the last of them counts."""
    for version in those_that_count(level, earlier):
        found = _obstacles_of_one(parser, level, type_, candidate, version)
        if found:
            return [*found, f"compared with version {version.version} of {version.subject} at level {level}"]
    return []


def those_that_count(level: Level, earlier: Sequence[StoredSchema]) -> list[StoredSchema]:
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
