"""OTLP as clients write it, by protobuf's rules: for tests of the reader."""

import struct
from collections.abc import Mapping


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def field(number: int, data: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(data)) + data


def double(number: int, value: float) -> bytes:
    return varint(number << 3 | 1) + struct.pack("<d", value)


def fixed(number: int, value: int) -> bytes:
    return varint(number << 3 | 1) + struct.pack("<q", value)


def attribute(number: int, name: str, value: str) -> bytes:
    return field(number, field(1, name.encode()) + field(2, field(1, value.encode())))


def gauge(name: str, value: float, attributes: Mapping[str, str] | None = None) -> bytes:
    point = b"".join(attribute(7, *each) for each in (attributes or {}).items()) + fixed(3, 1) + double(4, value)
    return field(1, name.encode()) + field(3, b"ms") + field(5, field(1, point))


def counter(name: str, value: int) -> bytes:
    return field(1, name.encode()) + field(7, field(1, fixed(6, value)) + varint(2 << 3) + varint(1))


def histogram(name: str, total: float, count: int) -> bytes:
    return field(1, name.encode()) + field(9, field(1, fixed(4, count) + double(5, total)))


def metrics(*made: bytes) -> bytes:
    """A MetricsData message."""
    scope = field(1, field(1, b"a scope")) + b"".join(field(2, each) for each in made)
    return field(1, field(1, attribute(1, "service.name", "x")) + field(2, scope))
