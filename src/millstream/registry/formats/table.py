"""The formats that the registry knows, by the names that requests use."""

import difflib

from millstream.registry.errors import invalid_schema
from millstream.registry.formats.avro import AvroFormat
from millstream.registry.formats.json_schema import JsonSchemaFormat
from millstream.registry.formats.protobuf import ProtobufFormat
from millstream.registry.formats.schema import SchemaFormat

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
