"""OTLP is read within limits; what is not OTLP is refused, whatever it is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.node.client_metrics.core.otlp import MalformedOtlpError, Point, read_points
from tests import otlp


def test_points_of_every_kind() -> None:
    payload = otlp.metrics(
        otlp.gauge("latency", 1.5, {"node.id": "1"}), otlp.counter("sent", -7), otlp.histogram("times", 10.0, 4)
    )
    assert read_points(payload) == [
        Point("latency", "gauge", 1.5, {"node.id": "1"}),
        Point("sent", "sum", -7, {}),
        Point("times", "histogram", 2.5, {}),
    ]


def test_points_and_names_are_bounded() -> None:
    payload = otlp.metrics(*(otlp.gauge("n" * 5000, float(number)) for number in range(50)))
    points = read_points(payload, most=10)
    assert len(points) == 10 and len(points[0].name) == 200


def test_fields_that_are_not_known_are_skipped() -> None:
    unknown = otlp.field(90, b"x") + otlp.fixed(91, 5) + otlp.varint(92 << 3) + otlp.varint(5)
    assert [point.name for point in read_points(otlp.metrics(unknown + otlp.gauge("a", 1.0)) + unknown)] == ["a"]
    assert read_points(b"") == []


@pytest.mark.parametrize("payload", [b"\x0a\x05ab", b"\xff" * 30, b"\x0b", b"\x09\x00", b"not protobuf at all"])
def test_bytes_that_are_not_protobuf_are_refused(payload: bytes) -> None:
    with pytest.raises(MalformedOtlpError):
        read_points(payload)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_malformed(payload: bytes) -> None:
    try:
        read_points(payload)
        read_points(otlp.field(1, otlp.field(2, otlp.field(2, payload))))
    except MalformedOtlpError:
        pass
