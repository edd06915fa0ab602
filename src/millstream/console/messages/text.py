"""Keys, values and headers as text: one line, a longer text, or hexadecimal; never markup, and with a maximum length.

Invisible characters and characters that change the text direction are escaped.
"""

import re
from dataclasses import dataclass
from typing import Any

import orjson

from millstream.registry.decoding import Decoded

LINE_CHARACTERS = 240


PIECE_CHARACTERS = 20_000
"""Of a value in the details dialog, until the user shows all."""


WHOLE_CHARACTERS = 2_000_000
"""The maximum that a browser shows; longer values can be saved."""


TREE_NODES = 2000
TREE_CHARACTERS = 2000
"""Of a text in the tree."""


_HEX_WIDTH = 16


_UNSEEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")


_IN_A_LINE = {"\n": "⏎", "\t": "⇥", "\r": "␍"}


_KINDS = {
    "null": "null",
    "json": "JSON",
    "text": "text",
    "binary": "binary",
    "avro": "Avro",
    "json-schema": "JSON Schema",
    "protobuf": "Protobuf",
}


@dataclass(frozen=True, slots=True)
class Piece:
    """Text, and the number of characters left out."""

    text: str
    left_out: int = 0


def kind_label(decoded: Decoded) -> str:
    name = _KINDS.get(decoded.kind, decoded.kind)
    return f"{name} #{decoded.schema_id}" if decoded.schema_id is not None and not decoded.problem else name


def one_line(decoded: Decoded, most: int = LINE_CHARACTERS) -> str:
    """A value in one line, for a table."""
    if decoded.kind == "null":
        return "null"
    # Only the visible part is escaped: a row may hold a megabyte of JSON.
    text = decoded.value if isinstance(decoded.value, str) else _dump(decoded.value, indented=False)
    cut = seen(text[: most + 1], in_a_line=True)
    return cut[:most] + "…" if len(text) > most else cut


def written_out(decoded: Decoded, most: int = PIECE_CHARACTERS) -> Piece:
    """A value for the details dialog: JSON indented, others unchanged."""
    if decoded.kind == "null":
        return Piece("null")
    plain = isinstance(decoded.value, str) and decoded.kind in ("text", "binary")
    text = decoded.value if plain else _dump(decoded.value, indented=True)
    return Piece(seen(text[:most]), max(0, len(text) - most))


def tree_of(value: object, most: int = TREE_NODES) -> dict[str, Any]:
    """A JSON value as nodes for the tree: name `n`, kind `k`, text `t`, and children `c`. At most `most` nodes."""
    left = most

    def node(name: str | None, each: object) -> dict[str, Any]:
        nonlocal left
        left -= 1
        made: dict[str, Any] = {"n": None if name is None else seen(name[:200], in_a_line=True)}
        if isinstance(each, (dict, list)):
            pairs = each.items() if isinstance(each, dict) else enumerate(each)
            made |= {"k": "part", "t": f"{{{len(each)}}}" if isinstance(each, dict) else f"[{len(each)}]", "c": []}
            for at, (key, item) in enumerate(pairs):
                if left <= 0:
                    made["c"].append({"n": None, "k": "part", "t": f"… {len(each) - at:,} more: choose JSON"})
                    break
                made["c"].append(node(str(key), item))
            return made
        if isinstance(each, str):
            more = "…" if len(each) > TREE_CHARACTERS else ""
            return made | {"k": "text", "t": f'"{seen(each[:TREE_CHARACTERS], in_a_line=True)}{more}"'}
        kind = "null" if each is None else "flag" if isinstance(each, bool) else "number"
        return made | {"k": kind, "t": _dump(each, indented=False)[:100]}

    return node(None, value)


def hexadecimal(data: bytes, most_bytes: int = PIECE_CHARACTERS // 5) -> Piece:
    """A hex dump: offsets, bytes and printable characters."""
    lines = []
    for at in range(0, min(len(data), most_bytes), _HEX_WIDTH):
        row = data[at : min(at + _HEX_WIDTH, most_bytes)]
        digits = row[:8].hex(" ") + ("  " + row[8:].hex(" ") if len(row) > 8 else "")
        printable = "".join(chr(byte) if 32 <= byte < 127 else "·" for byte in row)
        lines.append(f"{at:08x}  {digits:<48}  {printable}")
    return Piece("\n".join(lines), max(0, len(data) - most_bytes))


def header_line(value: bytes | None, most: int = LINE_CHARACTERS) -> str:
    if value is None:
        return "null"
    try:
        text = value[: 4 * most + 4].decode() if len(value) <= 4 * most else value[: 4 * most].decode("utf-8", "ignore")
    except UnicodeDecodeError:
        text = f"0x{value[:most].hex()}"
    return seen(text[:most], in_a_line=True) + ("…" if len(text) > most or len(value) > 4 * most else "")


def seen(text: str, *, in_a_line: bool = False) -> str:
    """The text with invisible characters escaped, also single surrogates, which cannot be sent to a browser."""
    shown = _UNSEEN.sub(_visible, text)
    if in_a_line:
        for character, sign in _IN_A_LINE.items():
            shown = shown.replace(character, sign)
    return shown


def _visible(found: re.Match[str]) -> str:
    code = ord(found[0])
    if code in (10, 9):
        return found[0]
    if code < 32:
        return chr(0x2400 + code)
    return "␡" if code == 127 else f"\\u{code:04x}"


def _dump(value: object, *, indented: bool) -> str:
    option = orjson.OPT_INDENT_2 if indented else None
    return orjson.dumps(value, option=option).decode()
