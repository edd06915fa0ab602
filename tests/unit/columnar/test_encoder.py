"""Arrow rows to record batches: read back by the plain codec and by other clients, the same bytes from both."""

import warnings
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest
from aiokafka.record import default_records as aiokafka_records
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millstream.columnar import ArrowEncoder, EncodedBatch, _pure, stamp
from millstream.columnar.compiled import compiled_or_none
from millstream.columnar.schema import HEADERS_TYPE
from millstream.formats.records.batch import read_header
from millstream.formats.records.compression import Codec
from millstream.formats.records.record import Record, read_batches
from tests.examples import examples
from tests.unit.columnar.rows import BATCHES, EXAMPLE, numbered

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # kafka-python's own
    from kafka.record import default_records as kafka_python_records

per_example = settings(max_examples=examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture])


def rows_of(records: list[Record]) -> pa.RecordBatch:
    headers = [[{"key": name, "value": value} for name, value in record.headers] or None for record in records]
    return pa.record_batch(
        {
            "key": pa.array([record.key for record in records], pa.binary()),
            "value": pa.array([record.value for record in records], pa.binary()),
            "headers": pa.array(headers, HEADERS_TYPE),
            "timestamp": pa.array([record.timestamp for record in records], pa.timestamp("ms", "UTC")),
        }
    )


def records_in(batches: list[EncodedBatch]) -> list[Record]:
    """All records, and a proof that each batch is whole, counted and sealed."""
    found: list[Record] = []
    for batch in batches:
        ((header, records),) = read_batches(batch.data)
        assert batch.record_count == len(records) == header.last_offset_delta + 1
        assert header.base_timestamp == records[0].timestamp
        assert header.max_timestamp == max(record.timestamp for record in records)
        assert (header.producer_id, header.producer_epoch, header.base_sequence) == (-1, -1, -1)
        found += numbered(records, len(found))
    return found


@per_example
@given(BATCHES, st.sampled_from(Codec), st.integers(62, 2000), st.integers(0, 4))
def test_every_record_can_be_read_back(
    implementation: ModuleType, records: list[Record], codec: Codec, max_batch_bytes: int, skipped: int
) -> None:
    encoder = ArrowEncoder(codec, max_batch_bytes=max_batch_bytes, implementation=implementation)
    batches = list(encoder.encode(rows_of(records).slice(skipped)))
    assert records_in(batches) == numbered(records[skipped:])
    if codec is Codec.NONE:
        assert all(len(batch.data) <= max_batch_bytes or batch.record_count == 1 for batch in batches)


@given(BATCHES, st.integers(62, 2000), st.integers(0, 3))
@settings(max_examples=examples(40))
def test_both_versions_write_the_same_bytes(records: list[Record], max_batch_bytes: int, skipped: int) -> None:
    compiled = compiled_or_none()
    if compiled is None:
        pytest.skip("the compiled module is not built here")
    rows = rows_of(records).slice(skipped)
    written = [
        [(bytes(batch.data), batch.record_count) for batch in encoder.encode(rows)]
        for encoder in (
            ArrowEncoder(Codec.NONE, max_batch_bytes=max_batch_bytes, implementation=module)
            for module in (_pure, compiled)
        )
    ]
    assert written[0] == written[1]


def test_the_producer_s_fields_are_stamped(implementation: ModuleType) -> None:
    (batch,) = ArrowEncoder(Codec.LZ4, implementation=implementation).encode(rows_of(EXAMPLE))
    stamp(batch, 7, 2, 11, True)
    ((header, records),) = read_batches(batch.data)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 2, 11)
    assert header.is_transactional and header.codec == Codec.LZ4 and records == numbered(EXAMPLE)
    ArrowEncoder.stamp(batch, 8, 0, 0, False)
    ((header, _),) = read_batches(batch.data)
    assert header.producer_id == 8 and not header.is_transactional


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
@pytest.mark.parametrize("module", [kafka_python_records, aiokafka_records], ids=["kafka-python", "aiokafka"])
def test_other_clients_read_it(implementation: ModuleType, module: Any, codec: Codec) -> None:
    (ours,) = ArrowEncoder(codec, implementation=implementation).encode(rows_of(EXAMPLE))
    batch = module.DefaultRecordBatch(bytes(ours.data))
    assert batch.validate_crc()
    found = [
        Record(each.key, each.value, tuple((name, value) for name, value in each.headers), each.timestamp, each.offset)
        for each in batch
    ]
    assert found == numbered(EXAMPLE)


def test_columns_may_be_missing_or_of_kindred_types(implementation: ModuleType) -> None:
    encoder = ArrowEncoder(Codec.NONE, implementation=implementation)
    rows = pa.record_batch(
        {
            "key": pa.array(["a", None], pa.large_string()),
            "value": pa.array(["x", "y"], pa.string_view()),
            "timestamp": pa.array([-1, None], pa.timestamp("us")),
        }
    )
    (batch,) = encoder.encode(rows)
    first, second = records_in([batch])
    assert (first.key, first.value, second.key, second.value) == (b"a", b"x", None, b"y")
    assert first.timestamp == -1  # a microsecond before 1970 is in the millisecond before
    assert second.timestamp > 1_700_000_000_000  # now
    (only_value,) = encoder.encode(pa.record_batch({"value": pa.array([b"z"])}))
    assert records_in([only_value])[0].value == b"z"
    assert list(encoder.encode(rows.slice(0, 0))) == []


def test_a_null_list_that_hides_headers_has_none(implementation: ModuleType) -> None:
    inner = pa.array([{"key": "a", "value": b"x"}, {"key": "b", "value": None}], HEADERS_TYPE.value_type)
    headers = pa.ListArray.from_arrays(
        pa.array([0, 1, 2], pa.int32()), inner, HEADERS_TYPE, mask=pa.array([True, False])
    )
    rows = pa.record_batch({"value": pa.array([b"1", b"2"]), "headers": headers})
    encoder = ArrowEncoder(Codec.NONE, implementation=implementation)
    assert [record.headers for record in records_in(list(encoder.encode(rows)))] == [(), (("b", None),)]


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ({"valeu": [b"x"]}, "no column 'valeu'; rows may have key, value, headers, timestamp"),
        ({"value": [1]}, "Column 'value' is int64; it must be binary or string"),
        ({"value": [b"x"], "headers": [1]}, "Column 'headers' is int64"),
        ({"value": [b"x"], "headers": [[{"key": None, "value": b""}]]}, "A header has no key"),
        ({"value": [b"x"], "timestamp": ["now"]}, "Column 'timestamp' is string"),
        ({"value": [b"x"], "timestamp": [1 << 62]}, "out of range"),
    ],
)
def test_wrong_rows_are_refused(columns: dict[str, list[Any]], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        list(ArrowEncoder(Codec.NONE).encode(pa.record_batch(columns)))


def test_a_batch_needs_room_for_its_header() -> None:
    with pytest.raises(ValueError, match="61 bytes"):
        ArrowEncoder(Codec.NONE, max_batch_bytes=61)


@pytest.mark.parametrize(("codec", "level"), [(Codec.GZIP, 1), (Codec.LZ4, 3), (Codec.ZSTD, 5)])
def test_every_compression_level_is_decoded(codec: Codec, level: int) -> None:
    (batch,) = ArrowEncoder(codec, level=level).encode(rows_of(EXAMPLE))
    assert read_header(batch.data).codec == codec
    assert records_in([batch]) == numbered(EXAMPLE)
