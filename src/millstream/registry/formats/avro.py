"""Avro schemas."""

import json
from collections.abc import Sequence
from typing import Any

import fastavro
from fastavro.schema import SchemaParseException, UnknownType

from millstream.registry.formats.avro_compatibility import problems_reading
from millstream.registry.formats.avro_model import AvroType, AvroWriter, build
from millstream.registry.formats.schema import Dependency, InvalidSchemaError, Problem

RESOLVED = "resolved"


class AvroSchema:
    def __init__(self, root: AvroType) -> None:
        self.root = root

    @property
    def canonical(self) -> str:
        return AvroWriter().text(self.root)

    def normalized(self) -> str:
        return AvroWriter(sort_properties=True).text(self.root)

    def rendered(self, form: str) -> str:
        return AvroWriter(inline_external=form == RESOLVED).text(self.root)

    def problems_reading(self, writer: "AvroSchema") -> list[Problem]:
        return problems_reading(self.root, writer.root)


class AvroFormat:
    name = "AVRO"
    forms = frozenset({RESOLVED})

    def parse(self, text: str, dependencies: Sequence[Dependency]) -> AvroSchema:
        known: dict[str, Any] = {}
        names: dict[str, AvroType] = {}
        for dependency in dependencies:
            _parse_one(dependency.text, known, names, f"reference {dependency.name!r}: ")
        for node in names.values():
            node.external = True
        return AvroSchema(_parse_one(text, known, names, ""))


def _parse_one(text: str, known: dict[str, Any], names: dict[str, AvroType], where: str) -> AvroType:
    document = load_json(text, where)
    try:
        fastavro.parse_schema(document, named_schemas=known, _force=True)
        return build(document, names)
    except UnknownType as error:
        raise InvalidSchemaError(
            f"{where}type {error.name!r} is not known: define it, or add a reference to it"
        ) from None
    except SchemaParseException as error:
        raise InvalidSchemaError(f"{where}{error}") from None
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        reason = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) and error.args else str(error)
        raise InvalidSchemaError(f"{where}this is no Avro schema: {reason}") from None


def load_json(text: str, where: str = "") -> Any:
    """A bare type name such as `string` counts as JSON too, as in Java's parser."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        if text.strip().isidentifier():
            return text.strip()
        raise InvalidSchemaError(f"{where}not JSON: {error.msg} at line {error.lineno} column {error.colno}") from None
    except RecursionError:
        raise InvalidSchemaError(f"{where}nested too deeply") from None
