"""Avro schemas."""

import json
import math
from collections.abc import Sequence
from typing import Any

from millstream.registry.formats.avro_compatibility import problems_reading
from millstream.registry.formats.avro_model import AvroType, AvroWriter, NotAvroError, build
from millstream.registry.formats.avro_rules import flaws
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

    def flaw(self) -> str | None:
        return next(flaws(self.root), None)

    def for_fastavro(self) -> Any:
        """Alone, as a document that fastavro takes: it refuses decimals that the specification says to ignore."""
        return json.loads(AvroWriter(inline_external=True, valid_decimals=True).text(self.root))

    def problems_reading(self, writer: "AvroSchema") -> list[Problem]:
        return problems_reading(self.root, writer.root)


class AvroFormat:
    name = "AVRO"
    forms = frozenset({RESOLVED})

    def parse(self, text: str, dependencies: Sequence[Dependency]) -> AvroSchema:
        names: dict[str, AvroType] = {}
        for dependency in dependencies:
            _parse_one(dependency.text, names, f"reference {dependency.name!r}: ")
        for node in names.values():
            node.external = True
        return AvroSchema(_parse_one(text, names, ""))


def _parse_one(text: str, names: dict[str, AvroType], where: str) -> AvroType:
    document = load_json(text, where)
    try:
        return build(document, names)
    except NotAvroError as error:
        raise InvalidSchemaError(f"{where}{error}") from None
    except RecursionError:
        raise InvalidSchemaError(f"{where}nested too deeply") from None


def load_json(text: str, where: str = "") -> Any:
    """A bare type name such as `string` counts as JSON too, as in Java's parser."""
    try:
        return json.loads(text, parse_constant=_no_constant, parse_float=_finite)
    except json.JSONDecodeError as error:
        if text.strip().isidentifier():
            return text.strip()
        raise InvalidSchemaError(f"{where}not JSON: {error.msg} at line {error.lineno} column {error.colno}") from None
    except RecursionError:
        raise InvalidSchemaError(f"{where}nested too deeply") from None
    except ValueError as error:
        raise InvalidSchemaError(f"{where}not JSON: {error}") from None


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number in JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"the number {text} is too large")
    return number
