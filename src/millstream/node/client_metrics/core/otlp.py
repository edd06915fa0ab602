"""OTLP metrics as clients push them (`MetricsData` of OpenTelemetry, protobuf), read into points.

A reader of the few messages that are needed, within limits: points, length of texts, depth. The broker has no protobuf
library (docs/adr/0053). Fields that are not needed are skipped, as protobuf requires. A payload that is not protobuf is
a `MalformedOtlpError`. Field numbers are those of opentelemetry/proto/metrics/v1/metrics.proto.
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

MOST_POINTS = 1000
"""More points of one push are left out."""
_LONGEST_TEXT = 200
_MOST_ATTRIBUTES = 16
_DOUBLE = struct.Struct("<d")
_FIXED64 = struct.Struct("<Q")
_SIGNED64 = struct.Struct("<q")

_VARINT, _EIGHT_BYTES, _LENGTH, _FOUR_BYTES = 0, 1, 2, 5


class MalformedOtlpError(ValueError):
    """The bytes are not a MetricsData message."""


class Point(NamedTuple):
    """One value. Of a histogram, it is the mean of its values since the last push."""

    name: str
    kind: str
    """gauge, sum or histogram."""
    value: float
    attributes: dict[str, str]


class _Field(NamedTuple):
    number: int
    wire_type: int
    number_value: int
    """Of a varint; of fixed fields, the bits."""
    data: memoryview


_NOTHING = memoryview(b"")


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise MalformedOtlpError("a number runs past the end")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def _fields(data: memoryview) -> Iterator[_Field]:
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, wire_type = key >> 3, key & 7
        if wire_type == _VARINT:
            value, at = _varint(data, at)
            yield _Field(number, wire_type, value, _NOTHING)
            continue
        if wire_type == _LENGTH:
            size, at = _varint(data, at)
        elif wire_type == _EIGHT_BYTES:
            size = 8
        elif wire_type == _FOUR_BYTES:
            size = 4
        else:
            raise MalformedOtlpError(f"wire type {wire_type} is not known")
        if size > len(data) - at:
            raise MalformedOtlpError("a field runs past the end")
        part = data[at : at + size]
        at += size
        yield _Field(
            number, wire_type, _FIXED64.unpack(part)[0] if size == 8 and wire_type == _EIGHT_BYTES else 0, part
        )


def _inner(data: memoryview, number: int) -> Iterator[memoryview]:
    return (field.data for field in _fields(data) if field.number == number and field.wire_type == _LENGTH)


def _text(data: memoryview) -> str:
    return bytes(data[:_LONGEST_TEXT]).decode(errors="replace")


def read_points(payload: bytes, most: int = MOST_POINTS) -> list[Point]:
    """The points of a push, at most `most` of them."""
    points: list[Point] = []
    for resource_metrics in _inner(memoryview(payload), 1):
        for scope_metrics in _inner(resource_metrics, 2):
            for metric in _inner(scope_metrics, 2):
                for point in _points_of(metric):
                    if len(points) >= most:
                        return points
                    points.append(point)
    return points


_GAUGE, _SUM, _HISTOGRAM = 5, 7, 9
_KINDS = {_GAUGE: "gauge", _SUM: "sum", _HISTOGRAM: "histogram"}


def _points_of(metric: memoryview) -> Iterator[Point]:
    name, kind, data = "", 0, _NOTHING
    for field in _fields(metric):
        if field.number == 1 and field.wire_type == _LENGTH:
            name = _text(field.data)
        elif field.number in _KINDS and field.wire_type == _LENGTH:
            kind, data = field.number, field.data
    if not name or not kind:
        return
    for point in _inner(data, 1):
        read = _histogram_point(point) if kind == _HISTOGRAM else _number_point(point)
        if read is not None:
            yield Point(name, _KINDS[kind], read[0], read[1])


def _number_point(point: memoryview) -> tuple[float, dict[str, str]] | None:
    value: float | None = None
    attributes: dict[str, str] = {}
    for field in _fields(point):
        if field.number == 4 and field.wire_type == _EIGHT_BYTES:
            value = _DOUBLE.unpack(field.data)[0]
        elif field.number == 6 and field.wire_type == _EIGHT_BYTES:
            value = _SIGNED64.unpack(field.data)[0]
        elif field.number == 7 and field.wire_type == _LENGTH:
            _add_attribute(attributes, field.data)
    return None if value is None else (value, attributes)


def _histogram_point(point: memoryview) -> tuple[float, dict[str, str]] | None:
    count, total = 0, 0.0
    attributes: dict[str, str] = {}
    for field in _fields(point):
        if field.number == 4 and field.wire_type == _EIGHT_BYTES:
            count = field.number_value
        elif field.number == 5 and field.wire_type == _EIGHT_BYTES:
            total = _DOUBLE.unpack(field.data)[0]
        elif field.number == 9 and field.wire_type == _LENGTH:
            _add_attribute(attributes, field.data)
    return (total / count, attributes) if count else None


def _add_attribute(attributes: dict[str, str], pair: memoryview) -> None:
    if len(attributes) >= _MOST_ATTRIBUTES:
        return
    name, value = "", ""
    for field in _fields(pair):
        if field.number == 1 and field.wire_type == _LENGTH:
            name = _text(field.data)
        elif field.number == 2 and field.wire_type == _LENGTH:
            value = _any_value(field.data)
    if name:
        attributes[name] = value


def _any_value(data: memoryview) -> str:
    for field in _fields(data):
        if field.number == 1 and field.wire_type == _LENGTH:
            return _text(field.data)
        if field.number == 2 and field.wire_type == _VARINT:
            return "true" if field.number_value else "false"
        if field.number == 3 and field.wire_type == _VARINT:
            return str(field.number_value - (1 << 64) if field.number_value >> 63 else field.number_value)
        if field.number == 4 and field.wire_type == _EIGHT_BYTES:
            return str(_DOUBLE.unpack(field.data)[0])
    return ""
