"""The records of the interoperability matrix: each shape of record a client can get wrong, once per codec and acks."""

from __future__ import annotations

import base64
import random
import time
from typing import Any

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
# 0 comes last: its failures are silent, so by then the others have shown that the topic takes writes.
ACKS: tuple[int | str, ...] = ("all", 1, 0)
# Just under the 1 MiB a broker takes by default, with room for a batch header and for codecs that cannot compress it.
LARGE_VALUE_BYTES = 1_040_000
# In the past, so that it is surely the client's and not the broker's, and within every broker's retention.
FIRST_TIMESTAMP_MS = int(time.time() * 1000) - 3_600_000

WireRecord = dict[str, Any]


def encode(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def record(
    key: bytes | None,
    value: bytes | None,
    headers: list[tuple[str, bytes | None]] | None = None,
    *,
    timestamp: int | None = None,
    partition: int | None = 0,
) -> WireRecord:
    """A record as the line protocol carries it."""
    return {
        "partition": partition,
        "key": encode(key),
        "value": encode(value),
        "headers": [[name, encode(content)] for name, content in headers or []],
        "timestamp": timestamp,
    }


def incompressible(size: int) -> bytes:
    return random.Random(size).randbytes(size)


def cases(codecs: list[str]) -> list[tuple[str, int | str]]:
    return [(codec, acks) for acks in ACKS for codec in CODECS if codec in codecs]


def build(codec: str, acks: int | str, number: int, partition: int, lacks: dict[str, str]) -> list[WireRecord]:
    """The records of case `number`, without the shapes the writing client `lacks`."""
    label = f"{codec} acks {acks}".encode()
    shapes: list[tuple[str, bytes | None, bytes | None, list[tuple[str, bytes | None]]]] = [
        ("plain", b"plain", label, [("written", label)]),
        ("null_key", None, b"no key", []),
        ("tombstone", b"tombstone", None, [("reason", b"deleted")]),
        ("empty_value", b"empty value", b"", []),
        ("empty_key", b"", b"empty key", []),
        ("non_ascii_key", "ключ 鍵 🔑".encode(), bytes(range(256)), []),
        # A repeated name stands together because kafkajs keeps headers in an object.
        (
            "headers",
            b"headers",
            b"x",
            [("repeated", b"first"), ("repeated", b"second"), ("leer", b""), ("größe", b"\xff\xfe")],
        ),
        ("null_header", b"null header", b"x", [("nothing", None)]),
        ("compressible", b"compressible", label * 2000, []),
    ]
    if acks == "all":
        shapes.append(("large", b"large", incompressible(LARGE_VALUE_BYTES), []))
    records = []
    for index, (shape, key, value, headers) in enumerate(shapes):
        if shape not in lacks:
            timestamp = None if "timestamp" in lacks else FIRST_TIMESTAMP_MS + 1000 * number + index
            records.append(record(key, value, headers, timestamp=timestamp, partition=partition))
    return records


def assert_same(read: list[WireRecord], written: list[WireRecord], *, first_offset: int = 0) -> None:
    """Byte for byte, in order, at consecutive offsets; a failure names the field without printing a megabyte."""
    for index, (got, wanted) in enumerate(zip(read, written, strict=False)):
        where = f"record {index} of {len(written)}"
        assert got["offset"] == first_offset + index, f"{where}: offset {got['offset']}"
        for part in ("key", "value", "headers"):
            if got[part] != wanted[part]:
                shown = (repr(got[part])[:200], repr(wanted[part])[:200])
                raise AssertionError(f"{where}: {part} is {shown[0]}, was written as {shown[1]}")
        if wanted["timestamp"] is None:
            assert got["timestamp"] > FIRST_TIMESTAMP_MS, f"{where}: timestamp {got['timestamp']}"
        else:
            assert got["timestamp"] == wanted["timestamp"], f"{where}: timestamp"
    assert len(read) == len(written), f"read {len(read)} records of {len(written)}"
