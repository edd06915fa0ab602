"""Which schema ids each subject has, as the records of `_schemas` say; pure, and no more than the guard needs.

The schema registry, of which a broker knows nothing else, keeps there what it has registered: JSON keys and values in
Confluent's format. A version that is deleted, softly or for good, does not count.
"""

import json
from collections.abc import Set
from typing import Any

_DEFAULT_CONTEXT = ":.:"
_NONE: frozenset[int] = frozenset()


class SchemaIds:
    def __init__(self) -> None:
        self._versions: dict[str, dict[int, int]] = {}
        """Of each subject the id of each version that is not deleted."""
        self._ids: dict[str, frozenset[int]] = {}

    def of(self, subject: str) -> Set[int]:
        return self._ids.get(subject, _NONE)

    def apply(self, key: bytes | None, value: bytes | None) -> None:
        """Takes the next record; ValueError, KeyError or TypeError if it is none of a registry's."""
        about = _document(key)
        kind = about.get("keytype")
        if kind == "SCHEMA":
            subject, version = _subject(about), int(about["version"])
            schema = None if value is None else _document(value)
            versions = self._versions.setdefault(subject, {})
            if schema is None or schema.get("deleted"):
                versions.pop(version, None)
            else:
                versions[version] = int(schema["id"])
        elif kind == "DELETE_SUBJECT" and value is not None:
            subject, last = _subject(about), int(_document(value)["version"])
            versions = self._versions.get(subject, {})
            for version in [version for version in versions if version <= last]:
                del versions[version]
        else:
            return
        if versions:
            self._ids[subject] = frozenset(versions.values())
        else:
            self._versions.pop(subject, None)
            self._ids.pop(subject, None)


def _subject(about: dict[str, Any]) -> str:
    return str(about["subject"]).removeprefix(_DEFAULT_CONTEXT)


def _document(data: bytes | None) -> dict[str, Any]:
    document = json.loads(data or b"null")
    if not isinstance(document, dict):
        raise ValueError("not a JSON object")
    return document
