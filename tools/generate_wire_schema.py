"""Writes `src/millstream/formats/protocol/wire.schema` from the message definitions of the `kio` package.

kio (Apache-2.0) carries the definition of every Kafka message, one class per version. This tool folds the versions of
each message into one entry in our own notation (see `millstream.formats.protocol.schema`), so that the broker needs
neither kio's import time nor its memory. Run it when a new kio brings new messages: `python
tools/generate_wire_schema.py`.
"""

import dataclasses
import sys
from pathlib import Path
from typing import Any

from kio.index import load_payload_module
from kio.schema.index import api_key_map, schema_name_map
from kio.serial._introspect import (
    EntityField,
    EntityTupleField,
    PrimitiveField,
    PrimitiveTupleField,
    classify_field,
    get_field_tag,
    get_schema_field_type,
    is_optional,
)
from kio.static.constants import EntityType

TARGET = Path(__file__).parents[1] / "src/millstream/formats/protocol/wire.schema"
TIMES = ("timedelta_i32", "timedelta_i64", "datetime_i64")
TYPES = {"error_code": "int16", "timedelta_i32": "int32", "timedelta_i64": "int64", "datetime_i64": "int64"}


OUR_FIELDS = {
    ("request", "broker_registration"): (
        None,
        """\
  machine_id string 0+ null:0+ tag:10000:0+ = null
  adopted_replicas []{} 0+ tag:10001:0+
    topic_id uuid 0+
    partition_index int32 0+
    from_broker int32 0+
    from_directory uuid 0+
    from_epoch int64 0+ = -1
  retired_brokers []int32 0+ tag:10002:0+""",
    ),
    ("request", "create_acls"): (None, "  mirror_link string 2+ null:2+ tag:10000:2+ = null"),
    ("request", "create_topics"): (
        "      value string 2+ null:2+",
        """\
    branch_of string 5+ null:5+ tag:10000:5+ = null
    branch_of_id uuid 5+ tag:10001:5+
    branch_offsets []int64 5+ tag:10002:5+""",
    ),
    ("response", "create_topics"): (
        "      is_sensitive bool 5+",
        "    branch_of string 5+ null:5+ tag:10000:5+ = null",
    ),
    ("response", "metadata"): (
        "    topic_authorized_operations int32 8+ = -2147483648",
        """\
    branch_of string 9+ null:9+ tag:10000:9+ = null
    branch_of_id uuid 9+ tag:10001:9+
    branch_offsets []int64 9+ tag:10002:9+""",
    ),
    ("response", "describe_cluster"): (
        "    is_fenced bool 2+",
        "    machine_id string 0+ null:0+ tag:10000:0+ = null",
    ),
}
"""Tagged fields of Millstream, with tags from 10000 on, and the line after which they come; None is the end. Other
programs skip tags that they do not know."""


OUR_MESSAGES = """\
request 10000 report_audit_events 0-0 flexible:0+
  events []string 0+

response 10000 report_audit_events 0-0 flexible:0+
  throttle_time_ms int32 0+
  error_code int16 0+
  error_message string 0+ null:0+ = null
  accepted int32 0+"""
"""APIs of Millstream, with keys from 10000 on. They are offered to clients of Millstream alone."""


class Folded:
    """One field, folded over the versions it appears in."""

    def __init__(self, name: str, kind: str) -> None:
        self.name = name
        self.kind = kind
        self.versions: set[int] = set()
        self.nullable: set[int] = set()
        self.tags: dict[int, int] = {}
        self.default = "-"
        self.children: list[Folded] = []


def wire_name(field: Any, kafka_type: str | None) -> str:
    name: str = field.name
    return name + "_ms" if kafka_type in TIMES and not name.endswith("_ms") else name


def default_text(field: Any, kind: str) -> str:
    value = field.default
    if kind == "int64" and value is None:
        return "-1"  # kio's way to write a time that is not there
    if value is dataclasses.MISSING or value == ():
        return "-"
    if value is None:
        return "null"
    if kind == "bool":
        return "true" if value else "-"
    if hasattr(value, "total_seconds"):
        value = round(value.total_seconds() * 1000)
    if kind == "string":
        return repr(str(value)) if value else "-"
    if kind in ("int8", "int16", "uint16", "int32", "uint32", "int64"):
        return str(int(value)) if int(value) else "-"
    return "-"


def fold(into: list[Folded], entity: Any, version: int) -> None:
    position = 0
    for field in dataclasses.fields(entity):
        field_class = classify_field(field)
        kafka_type: str | None
        nested: Any
        array = "[]" if field_class.is_array else ""
        match field_class:
            case PrimitiveField() | PrimitiveTupleField():
                kafka_type = get_schema_field_type(field)
                kind = array + TYPES.get(kafka_type, kafka_type)
                nested = None
            case EntityField(nested) | EntityTupleField(nested):
                kafka_type = None
                kind = array + "{}"
        name = wire_name(field, kafka_type)
        at = next((i for i, f in enumerate(into) if f.name == name and f.kind == kind), None)
        if at is None:
            into.insert(position, Folded(name, kind))
            at = position
        folded = into[at]
        position = at + 1
        folded.versions.add(version)
        tag = get_field_tag(field)
        nullable = is_optional(field) and kind.removeprefix("[]") not in ("uuid", "int64")
        if tag is not None:
            folded.tags[version] = tag
        if nullable and (tag is None or array or kind in ("string", "bytes", "records", "{}")):
            folded.nullable.add(version)
        folded.default = default_text(field, kind) if not array else "-"
        if nested is not None:
            fold(folded.children, nested, version)


def span(versions: set[int], last: int) -> str:
    low, high = min(versions), max(versions)
    assert versions == set(range(low, high + 1)), versions
    return f"{low}+" if high == last else str(low) if low == high else f"{low}-{high}"


def render(fields: list[Folded], last: int, indent: int, out: list[str]) -> None:
    for field in fields:
        line = f"{'  ' * indent}{field.name} {field.kind} {span(field.versions, last)}"
        if field.nullable:
            line += f" null:{span(field.nullable, last)}"
        if field.tags:
            (tag,) = set(field.tags.values())
            line += f" tag:{tag}:{span(set(field.tags), last)}"
        if field.default != "-":
            line += f" = {field.default}"
        out.append(line)
        render(field.children, last, indent + 1, out)


def main() -> None:
    out = [
        "# Every message of Kafka's wire protocol, all versions of a message in one entry.",
        "# Written by tools/generate_wire_schema.py; the notation is explained in schema.py.",
    ]
    for key, name in sorted(api_key_map.items()):
        for kind in (EntityType.request, EntityType.response):
            versions = sorted(v for v, entry in schema_name_map[name].items() if kind in entry)
            fields: list[Folded] = []
            flexible = []
            for version in versions:
                module = load_payload_module(key, version, kind)
                entity: Any = next(
                    v
                    for v in vars(module).values()
                    if isinstance(v, type) and getattr(v, "__type__", None) is kind and v.__module__ == module.__name__
                )
                fold(fields, entity, version)
                if entity.__flexible__:
                    flexible.append(version)
            first_flexible = f" flexible:{flexible[0]}+" if flexible else ""
            out.append("")
            out.append(f"{kind.name} {key} {name} {versions[0]}-{versions[-1]}{first_flexible}")
            rendered: list[str] = []
            render(fields, versions[-1], 1, rendered)
            after, ours = OUR_FIELDS.get((kind.name, name), (None, ""))
            at = len(rendered) if after is None else rendered.index(after) + 1
            out += [*rendered[:at], *ours.splitlines(), *rendered[at:]]
    out += ["", *OUR_MESSAGES.splitlines()]
    TARGET.write_text("\n".join(out) + "\n")
    print(f"{TARGET.name}: {len(out)} lines", file=sys.stderr)


if __name__ == "__main__":
    main()
