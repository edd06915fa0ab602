"""Records as text: JSON lines, templates as in kcat, and the values of `consume --from`.

`produce --json-lines` reads what `consume --json` prints, so a topic can be copied through a pipe. Bytes that are not
UTF-8 are base64 in `key_base64` and `value_base64`.
"""

import base64
import contextlib
import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from millstream.cli import exit_codes
from millstream.cli.terminal import CommandFailedError
from millstream.common.quantities import parse_duration

if TYPE_CHECKING:
    from millstream.client import Message, Record
    from millstream.client.stream import Start

_ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}


def start_of(text: str) -> "Start":
    """`--from`: earliest, latest, an offset, -N, a time (2026-01-31T12:00, @milliseconds), or an age (90s, 5m, 2h)."""
    if text in {"earliest", "beginning"}:
        return "earliest"
    if text in {"latest", "end"}:
        return "latest"
    if re.fullmatch(r"-?\d+", text):
        return int(text)
    if re.fullmatch(r"@\d+", text):
        return datetime.fromtimestamp(int(text[1:]) / 1000, UTC)
    with contextlib.suppress(ValueError):
        return parse_duration(text)
    try:
        return datetime.fromisoformat(text).astimezone()
    except ValueError:
        raise CommandFailedError(
            f"--from {text}: write earliest, latest, an offset, -N for the last N, a time such as 2026-01-31T12:00,"
            " @milliseconds, or an age such as 90s, 5m, 2h, 7d",
            exit_codes.USAGE,
        ) from None


def as_json(record: "Record[Any]") -> dict[str, Any]:
    """One record for a JSON line."""
    document: dict[str, Any] = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp_ms,
    }
    _put(document, "key", record.key)
    _put(document, "value", record.raw)
    if record.headers:
        document["headers"] = [_header(name, value) for name, value in record.headers]
    return document


def from_json(line: bytes, number: int) -> "Message":
    """One record from a JSON line with the fields of `as_json`; all but the value are optional.

    A value that is not a string (an object, a number) is published as JSON.
    """
    from millstream.client import Message

    try:
        document = json.loads(line)
        if not isinstance(document, dict):
            raise ValueError("it is not a JSON object")
        headers = [
            (name, base64.b64decode(value["base64"]) if isinstance(value, dict) else value)
            for name, value in _pairs(document.get("headers", []))
        ]
        return Message(_get(document, "value"), _get(document, "key"), headers, None, document.get("timestamp"))
    except (ValueError, KeyError, TypeError) as error:
        raise CommandFailedError(
            f'line {number} is not a record: {error}. Write {{"key": …, "value": …, "headers": …}} on each line'
        ) from None


def template(text: str) -> Callable[["Record[Any]"], bytes]:
    """A function for kcat's `-f`: %t topic, %p partition, %o offset, %T timestamp, %k/%K key and its length,
    %s/%S value and its length, %h headers, %% percent; \\n, \\t, \\r, \\0 and \\xHH."""
    parts: list[bytes | Callable[[Record[Any]], bytes]] = []
    for found in re.finditer(r"%(.)|\\x([0-9a-fA-F]{2})|\\(.)|([^%\\]+|[%\\]$)", text, re.DOTALL):
        field, hexadecimal, escape, plain = found.groups()
        if field is not None:
            if field not in _FIELDS:
                raise CommandFailedError(
                    f"--format: %{field} is unknown; the fields are %{', %'.join(_FIELDS)}", exit_codes.USAGE
                )
            parts.append(_FIELDS[field])
        elif hexadecimal is not None:
            parts.append(bytes.fromhex(hexadecimal))
        elif escape is not None:
            parts.append(_ESCAPES.get(escape, f"\\{escape}".encode()))
        else:
            parts.append(plain.encode())
    return lambda record: b"".join(part if isinstance(part, bytes) else part(record) for part in parts)


def header_text(record: "Record[Any]") -> bytes:
    """name=value,name=value"""
    return b",".join(name.encode() + b"=" + (b"" if value is None else value) for name, value in record.headers)


_FIELDS: dict[str, Callable[["Record[Any]"], bytes]] = {
    "t": lambda record: record.topic.encode(),
    "p": lambda record: b"%d" % record.partition,
    "o": lambda record: b"%d" % record.offset,
    "T": lambda record: b"%d" % record.timestamp_ms,
    "k": lambda record: record.key or b"",
    "K": lambda record: b"%d" % (-1 if record.key is None else len(record.key)),
    "s": lambda record: record.raw or b"",
    "S": lambda record: b"%d" % (-1 if record.raw is None else len(record.raw)),
    "h": header_text,
    "%": lambda record: b"%",
}


def _put(document: dict[str, Any], name: str, value: bytes | None) -> None:
    try:
        document[name] = None if value is None else value.decode()
    except UnicodeDecodeError:
        document[f"{name}_base64"] = base64.b64encode(value or b"").decode()


def _get(document: dict[str, Any], name: str) -> bytes | str | None:
    if f"{name}_base64" in document:
        return base64.b64decode(document[f"{name}_base64"])
    value = document.get(name)
    return value if value is None or isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _header(name: str, value: bytes | None) -> list[Any]:
    try:
        return [name, None if value is None else value.decode()]
    except UnicodeDecodeError:
        return [name, {"base64": base64.b64encode(value or b"").decode()}]


def _pairs(headers: Any) -> list[tuple[str, Any]]:
    return list(headers.items()) if isinstance(headers, dict) else [(name, value) for name, value in headers]
