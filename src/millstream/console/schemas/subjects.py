"""Reads and changes subjects of the registry for the Schemas page."""

from dataclasses import dataclass
from typing import Any

from millstream.console.console import href
from millstream.registry.errors import RegistryError
from millstream.registry.records import StoredSchema, Subject, parse_subject
from millstream.registry.registering import SchemaRequest
from millstream.registry.registry import Registry
from millstream.registry.state import Level

TYPES = ("AVRO", "JSON", "PROTOBUF")
LEVEL_HELP = {
    "NONE": "No check: any schema can be registered.",
    "BACKWARD": "Consumers with the new schema can read records of the last version. Upgrade consumers first.",
    "BACKWARD_TRANSITIVE": "Consumers with the new schema can read records of all earlier versions.",
    "FORWARD": "Consumers with the last version can read records of the new schema. Upgrade producers first.",
    "FORWARD_TRANSITIVE": "Consumers with any earlier version can read records of the new schema.",
    "FULL": "Consumers with the new or the last version can read records of the other one.",
    "FULL_TRANSITIVE": "Consumers with the new or any earlier version can read records of each other.",
}
LEVELS = tuple(LEVEL_HELP)
assert set(LEVELS) == set(Level.__members__)
EXAMPLES = {
    "AVRO": '{\n  "type": "record",\n  "name": "Order",\n  "fields": [\n    {"name": "id", "type": "long"}\n  ]\n}',
    "JSON": '{\n  "type": "object",\n  "properties": {\n    "id": {"type": "integer"}\n  }\n}',
    "PROTOBUF": 'syntax = "proto3";\n\nmessage Order {\n  int64 id = 1;\n}',
}


@dataclass(frozen=True, slots=True)
class SubjectState:
    """A subject with all its versions, in order, including deleted ones."""

    name: str
    versions: tuple[StoredSchema, ...]
    level: str
    own_level: bool

    @property
    def live(self) -> tuple[StoredSchema, ...]:
        return tuple(each for each in self.versions if not each.deleted)


def subject_rows(registry: Registry, *, deleted: bool) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for name in registry.subjects(deleted=deleted):
        subject = parse_subject(name)
        versions = registry.versions(subject, deleted=True)
        live = [each for each in versions if not each.deleted]
        last = (live or versions)[-1]
        rows.append(
            {
                "subject": name,
                "type": last.type,
                "versions": len(live),
                "version": last.version if live else None,
                "id": last.id,
                "level": str(registry.level(subject)),
                "state": "" if live else "deleted",
                "_tones": {"type": "info", "state": "warn"},
                "_href": href("/schemas", subject=name),
            }
        )
    return rows


def read_subject(registry: Registry, name: str) -> SubjectState:
    """Reads a subject. RegistryError if it does not exist, also after reading to the end of the topic."""
    subject = parse_subject(name)
    versions = registry.retry_if_missing(lambda: registry.versions(subject, deleted=True))
    return SubjectState(name, tuple(versions), str(registry.level(subject)), _has_own_level(registry, subject))


def _has_own_level(registry: Registry, subject: Subject) -> bool:
    try:
        registry.settings.config(subject, default_to_global=False)
    except RegistryError:
        return False
    return True


def check(registry: Registry, name: str, text: str, type_: str) -> list[str]:
    """The incompatibilities by the level of the subject. RegistryError if the schema is not valid."""
    return registry.check(parse_subject(name), SchemaRequest(text, type_), "all")


def register(registry: Registry, name: str, text: str, type_: str) -> StoredSchema:
    return registry.register(parse_subject(name), SchemaRequest(text, type_))


def set_level(registry: Registry, name: str | None, level: str) -> None:
    registry.settings.set_config(None if name is None else parse_subject(name), {"compatibility": level})


def forget_level(registry: Registry, name: str) -> None:
    registry.settings.delete_config(parse_subject(name))


def delete_subject(registry: Registry, name: str, *, permanent: bool) -> list[int]:
    return registry.deleter.delete_subject(parse_subject(name), permanent=permanent)


def delete_version(registry: Registry, name: str, version: int) -> int:
    return registry.deleter.delete_version(parse_subject(name), version, permanent=False)
