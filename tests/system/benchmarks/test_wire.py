"""The hand-written requests are what an independent reader of the protocol (kio) reads."""

from __future__ import annotations

import io
import struct

import crc32c
import pytest

from benchmarks.compare import wire


def test_record_batch_has_its_crc_and_counts() -> None:
    batch = wire.record_batch([b"one", b"two"])
    base, length, _, magic, crc = struct.unpack_from(">qiibI", batch)
    assert (base, magic) == (0, 2)
    assert length == len(batch) - 12
    assert crc == crc32c.crc32c(batch[21:])
    assert struct.unpack_from(">i", batch, 23)[0] == 1
    assert struct.unpack_from(">i", batch, 57)[0] == 2


@pytest.mark.parametrize("version", [11])
def test_produce_request_is_read_by_kio(version: int) -> None:
    kio_serial = pytest.importorskip("kio.serial")
    from kio.schema.produce.v11.request import ProduceRequest
    from kio.schema.request_header.v2.header import RequestHeader

    batch = wire.record_batch([b"x"])
    frame = wire.produce_request("topic", 3, batch, acks=-1)
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    rest = frame[4:]
    header, at = _read(kio_serial, RequestHeader, rest)
    assert (header.request_api_key, header.request_api_version) == (0, version)
    request, _ = _read(kio_serial, ProduceRequest, rest[at:])
    assert request.acks == -1
    assert request.topic_data[0].name == "topic"
    assert request.topic_data[0].partition_data[0].index == 3


def _read(kio_serial, entity, data):  # type: ignore[no-untyped-def]
    read = kio_serial.entity_reader(entity)
    try:
        return read(data, 0)
    except TypeError:
        stream = io.BytesIO(data)
        return read(stream), stream.tell()
