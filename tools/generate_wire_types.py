"""Writes `src/millstream/formats/protocol/wire_types.pyi`: the types of all wire messages, from `wire.schema`.

For each API a request class (the decoded request that a handler gets) and response TypedDicts (the fields that a
handler returns), so that mypy checks both. Run it after a change of the schema: `python tools/generate_wire_types.py`.
"""

from pathlib import Path

from millstream.formats.protocol.schema import Schema, _entries
from millstream.formats.protocol.structure import NEVER, Field, Structure

TARGET = Path(__file__).parents[1] / "src/millstream/formats/protocol/wire_types.pyi"

HEAD = '''"""The types of Kafka's messages, for mypy. Written by tools/generate_wire_types.py: do not edit.

`XRequest` is a decoded request, with the fields of all versions. `XResponse` is what a handler returns. A field is
required in it if the newest version sends it and it has no default; `error_code` 0 and `throttle_time_ms` 0 may be left
out.
"""

from collections.abc import Sequence
from typing import NotRequired, TypedDict
from uuid import UUID

class Decoded:
    """A decoded structure: it has the fields of its class and no others."""
'''

_TYPES = {"bool": "bool", "float64": "float", "string": "str", "uuid": "UUID"}
_REQUEST_BYTES, _RESPONSE_BYTES = "bytes", "bytes | bytearray | memoryview"
_OPTIONAL = frozenset(("error_code", "throttle_time_ms"))


def generate() -> str:
    """The text of the file."""
    parts = [HEAD]
    for (kind, name), entry in sorted(_entries().items(), key=lambda each: (each[0][1], each[0][0])):
        schema = Schema(entry)
        title = _camel(name) + ("Request" if kind == "request" else "Response")
        about = f"API {schema.api_key}, versions {schema.versions.low} to {schema.versions.high}."
        parts += _classes(schema.root, title, schema.versions.high, kind == "request", about)
    return "\n".join(parts)


def _camel(name: str) -> str:
    return "".join(word.capitalize() for word in name.split("_"))


def _classes(structure: Structure, title: str, last: int, is_request: bool, about: str) -> list[str]:
    """The class of a structure, after those of the structures inside it. `last` is the newest version that has it."""
    found: list[str] = []
    lines = [f"class {title}({'Decoded' if is_request else 'TypedDict'}):", f'    """{about}"""', ""]
    fields: dict[str, list[Field]] = {}
    for each in structure.fields:
        fields.setdefault(each.name, []).append(each)
    for name, same in fields.items():
        # A name may stand for one field in old versions and for another one later.
        newest = max(same, key=lambda each: each.versions.high)
        inner = f"{title}{_camel(name)}"
        if newest.children is not None:
            found += _classes(
                newest.children, inner, min(last, newest.versions.high), is_request, f"An item of {name}."
            )
        kind = " | ".join(dict.fromkeys(_type(each, inner, is_request) for each in same))
        if any(each.nullable is not NEVER or (each.default_text == "null" and each.type != "uuid") for each in same):
            kind += " | None"
        if not is_request and not _is_required(newest, last):
            kind = f"NotRequired[{kind}]"
        lines += [f"    {name}: {kind}", f'    """{_doc(newest)}"""']
    if len(lines) == 3:
        lines.pop()
    return [*found, "\n".join(lines) + "\n"]


def _is_required(each: Field, last: int) -> bool:
    return (
        each.name not in _OPTIONAL
        and last in each.versions
        and each.default_text is None
        and each.nullable is NEVER
        and each.tagged is NEVER
    )


def _type(each: Field, inner: str, is_request: bool) -> str:
    is_array = each.type.startswith("[]")
    kind = each.type.removeprefix("[]")
    if kind == "{}":
        found = inner
    elif kind in ("bytes", "records"):
        found = _REQUEST_BYTES if is_request else _RESPONSE_BYTES
    else:
        found = _TYPES.get(kind, "int")
    if is_array:
        return f"list[{found}]" if is_request else f"Sequence[{found}]"
    return found


def _doc(each: Field) -> str:
    low, high = each.versions.low, each.versions.high
    versions = f"versions {low}+" if high >= 1 << 15 else f"versions {low}-{high}" if low != high else f"version {low}"
    kind = each.type.replace("{}", "structure")
    kind = f"array of {kind[2:]}" if kind.startswith("[]") else kind
    default = "" if each.default_text is None else f"; default {each.default_text}"
    tagged = "" if each.tagged is NEVER else f"; tag {each.tag}"
    return f"{kind}, {versions}{default}{tagged}."


if __name__ == "__main__":
    TARGET.write_text(generate())
    print(f"wrote {TARGET}")
