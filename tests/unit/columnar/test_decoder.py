"""Fetched bytes to Arrow: every codec, other clients' batches, ranges, transactions, the size of what comes out."""

import pickle
import warnings
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest
from aiokafka.record import default_records as aiokafka_records
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millstream.columnar import COLUMNS, DEFAULT_COLUMNS, RECORD_SCHEMA, ArrowDecoder, CorruptBatchError
from millstream.formats.records.batch import seal
from millstream.formats.records.compression import Codec
from millstream.formats.records.record import Record, build_batch
from tests.examples import examples
from tests.unit.columnar.rows import BATCHES, EXAMPLE, numbered, rows_in, shown

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # kafka-python's own
    from kafka.record import default_records as kafka_python_records

EVERYTHING = 1 << 62
per_example = settings(max_examples=examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture])


def decode(
    implementation: ModuleType,
    data: bytes | bytearray,
    *,
    start: int = 0,
    stop: int = EVERYTHING,
    aborted: tuple[tuple[int, int], ...] = (),
    columns: tuple[str, ...] = COLUMNS,
    max_rows: int = 1000,
    max_bytes: int = 1 << 20,
) -> tuple[list[pa.RecordBatch], int]:
    decoder = ArrowDecoder(columns, max_rows=max_rows, max_bytes=max_bytes, implementation=implementation)
    return decoder.decode(data, topic="orders", partition=0, start=start, stop=stop, aborted=aborted)


def offsets(batches: list[pa.RecordBatch]) -> list[int]:
    return [offset for batch in batches for offset in batch.column("offset").to_pylist()]


@per_example
@given(BATCHES, st.sampled_from(Codec), st.integers(0, 1 << 61))
def test_every_codec_brings_every_record_back(
    implementation: ModuleType, records: list[Record], codec: Codec, base_offset: int
) -> None:
    batch = build_batch(records, codec=codec, base_offset=base_offset)
    batches, following = decode(implementation, batch, start=base_offset)
    assert rows_in(batches) == shown(numbered(records, base_offset))
    assert following == base_offset + len(records)
    assert all(found.schema == RECORD_SCHEMA for found in batches)


@per_example
@given(st.lists(BATCHES, min_size=1, max_size=4), st.integers(1, 7), st.integers(1, 400), st.sampled_from(Codec))
def test_rows_are_cut_by_count_and_by_bytes(
    implementation: ModuleType, logs: list[list[Record]], max_rows: int, max_bytes: int, codec: Codec
) -> None:
    data = bytearray()
    wanted: list[Any] = []
    for records in logs:
        data += build_batch(records, base_offset=len(wanted), codec=codec)
        wanted += numbered(records, len(wanted))
    batches, following = decode(implementation, data, max_rows=max_rows, max_bytes=max_bytes)
    assert rows_in(batches) == shown(wanted)
    assert following == len(wanted)
    for batch in batches:
        size = sum(
            len(record.key or b"") + len(record.value or b"")
            for record in wanted[batch.column("offset")[0].as_py() :][: batch.num_rows]
        )
        assert batch.num_rows <= max_rows and (size <= max_bytes or batch.num_rows == 1)


@pytest.mark.parametrize("columns", [("value",), ("offset", "key"), ("topic",), ("partition", "topic"), ("headers",)])
def test_only_the_asked_columns_in_the_asked_order(implementation: ModuleType, columns: tuple[str, ...]) -> None:
    batches, _ = decode(implementation, build_batch(EXAMPLE), columns=columns)
    assert batches[0].schema.names == list(columns)
    wanted = [{name: row[name] for name in columns} for row in shown(numbered(EXAMPLE))]
    assert rows_in(batches) == wanted


def test_the_schema_is_that_of_spark_s_kafka_source() -> None:
    types = pytest.importorskip("pyspark.sql.types")
    pandas_types = pytest.importorskip("pyspark.sql.pandas.types")
    field = types.StructField
    schema = types.StructType(
        [
            field("key", types.BinaryType()),
            field("value", types.BinaryType()),
            field("topic", types.StringType()),
            field("partition", types.IntegerType()),
            field("offset", types.LongType()),
            field("timestamp", types.TimestampType()),
            field("timestampType", types.IntegerType()),
            field(
                "headers",
                types.ArrayType(
                    types.StructType([field("key", types.StringType()), field("value", types.BinaryType())])
                ),
            ),
        ]
    )
    assert pandas_types.to_arrow_schema(schema, timezone="UTC").equals(RECORD_SCHEMA)


def test_a_range_inside_of_a_batch(implementation: ModuleType) -> None:
    data = build_batch(EXAMPLE * 3, base_offset=10) + build_batch(EXAMPLE, base_offset=19)
    batches, following = decode(implementation, data, start=12, stop=20)
    assert offsets(batches) == list(range(12, 20))
    assert following == 20
    batches, following = decode(implementation, data, start=12, stop=15)
    assert (offsets(batches), following) == ([12, 13, 14], 15)
    assert decode(implementation, data, start=12, stop=12) == ([], 12)


def test_batches_before_the_start_are_passed_over(implementation: ModuleType) -> None:
    early = build_batch(EXAMPLE)
    early[-1] ^= 1  # no one looks inside
    batches, following = decode(implementation, early + build_batch(EXAMPLE, base_offset=3), start=3)
    assert (offsets(batches), following) == ([3, 4, 5], 6)


def test_gaps_are_no_loss(implementation: ModuleType) -> None:
    records = [EXAMPLE[0]._replace(offset=10), EXAMPLE[1]._replace(offset=17), EXAMPLE[2]]
    data = build_batch(records, base_offset=10) + build_batch(EXAMPLE, base_offset=30)
    batches, following = decode(implementation, data, start=0, stop=25)
    assert (offsets(batches), following) == ([10, 17, 18], 25)
    batches, following = decode(implementation, data, start=18)
    assert (offsets(batches), following) == ([18, 30, 31, 32], 33)


def test_an_empty_batch_of_the_cleaner_moves_on(implementation: ModuleType) -> None:
    header_only = bytearray(build_batch(EXAMPLE, base_offset=5))[:61]
    header_only[8:12] = (49).to_bytes(4, "big")
    header_only[57:61] = bytes(4)
    seal(header_only, 0, len(header_only))
    assert decode(implementation, header_only, start=5) == ([], 8)


def test_a_cut_off_batch_is_left_for_the_next_fetch(implementation: ModuleType) -> None:
    first, second = build_batch(EXAMPLE), build_batch(EXAMPLE, base_offset=3, codec=Codec.ZSTD)
    for cut in (1, len(second) - 61, len(second) - 60, len(second) - 1):
        batches, following = decode(implementation, (first + second)[:-cut])
        assert (offsets(batches), following) == ([0, 1, 2], 3)
    assert decode(implementation, first[:-1], start=0) == ([], 0)
    assert decode(implementation, b"", start=7) == ([], 7)


def test_log_append_time_is_the_time_of_every_record(implementation: ModuleType) -> None:
    batches, _ = decode(implementation, build_batch(EXAMPLE, log_append_time=42))
    found = rows_in(batches)
    assert {row["timestampType"] for row in found} == {1}
    assert found == shown([record._replace(timestamp=42) for record in numbered(EXAMPLE)], kind=1)


def test_a_timestamp_that_no_calendar_has_is_null(implementation: ModuleType) -> None:
    records = [Record(None, b"", (), stamp) for stamp in (0, (1 << 62), -(1 << 62), 9_223_372_036_854_775)]
    batches, _ = decode(implementation, build_batch(records), columns=("timestamp",))
    found = batches[0].column(0).cast(pa.int64()).to_pylist()
    assert found == [0, None, None, 9_223_372_036_854_775_000]


def test_transactions_that_were_aborted_are_left_out(implementation: ModuleType) -> None:
    def marker(offset: int, producer: int) -> bytearray:
        control = [Record(b"\x00\x00\x00\x00", b"\x00" * 6, (), 0)]
        return build_batch(control, base_offset=offset, producer_id=producer, transactional=True, control=True)

    def batch(offset: int, producer: int, transactional: bool = True) -> bytearray:
        records = [Record(None, b"v", (), 0)]
        return build_batch(records, base_offset=offset, producer_id=producer, transactional=transactional)

    data = (
        batch(0, 1) + batch(1, 2) + batch(2, 1, False) + marker(3, 1) + batch(4, 1) + batch(5, 2) + marker(6, 2)
        + batch(7, 2) + marker(8, 2) + marker(9, 1)
    )  # fmt: skip
    batches, following = decode(implementation, data, aborted=((1, 0), (2, 7)))
    # 0 is aborted; 2 is of that producer but in no transaction; 4 is its next one; 7 is the second of producer 2.
    assert (offsets(batches), following) == ([1, 2, 4, 5], 10)
    batches, _ = decode(implementation, data)
    assert offsets(batches) == [0, 1, 2, 4, 5, 7]
    batches, _ = decode(implementation, data, start=4, aborted=((1, 0), (2, 7)))
    assert offsets(batches) == [4, 5]


def test_a_header_name_that_is_not_utf_8_is_shown_with_replacements(implementation: ModuleType) -> None:
    records = [Record(None, b"", (("\udcff", b"x"), ("plain", b"y"), ("\u00fc", None)), 0, 0)]
    batches, _ = decode(implementation, build_batch(records), columns=("headers",))
    assert [header["key"] for header in rows_in(batches)[0]["headers"]] == ["\ufffd", "plain", "\u00fc"]


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
@pytest.mark.parametrize("module", [kafka_python_records, aiokafka_records], ids=["kafka-python", "aiokafka"])
def test_batches_of_other_clients(implementation: ModuleType, module: Any, codec: Codec) -> None:
    builder = module.DefaultRecordBatchBuilder(
        magic=2, compression_type=codec, is_transactional=0, producer_id=5, producer_epoch=1, base_sequence=9,
        batch_size=1 << 20,
    )  # fmt: skip
    for offset, record in enumerate(EXAMPLE):
        builder.append(offset, record.timestamp, record.key, record.value, list(record.headers))
    batches, _ = decode(implementation, bytes(builder.build()))
    assert rows_in(batches) == shown(numbered(EXAMPLE))


def test_a_large_value_and_many_rows(implementation: ModuleType) -> None:
    records = [Record(b"k", bytes([n % 251]) * (1 << 20 if n == 500 else n), (("h", b"x" * n),), n) for n in range(999)]
    data = build_batch(records, codec=Codec.LZ4)
    batches, _ = decode(implementation, data, max_rows=10_000, max_bytes=1 << 30)
    assert len(batches) == 1
    assert rows_in(batches) == shown(numbered(records))
    batches, _ = decode(implementation, data, max_rows=10_000, max_bytes=1 << 16)
    assert rows_in(batches) == shown(numbered(records))


def test_what_came_out_outlives_the_decoder(implementation: ModuleType) -> None:
    decoder = ArrowDecoder(COLUMNS, implementation=implementation)
    data = bytearray(build_batch(EXAMPLE))
    first, _ = decoder.decode(data, topic="a", partition=1, start=0, stop=9)
    data[:] = bytes(len(data))
    second, _ = decoder.decode(build_batch(EXAMPLE[:1]), topic="b", partition=2, start=0, stop=9)
    del decoder
    assert rows_in(first) == shown(numbered(EXAMPLE), "a", 1)
    assert rows_in(second) == shown(numbered(EXAMPLE[:1]), "b", 2)


def test_wrong_columns_are_named() -> None:
    with pytest.raises(ValueError, match="no column 'vlaue'; did you mean 'value'"):
        ArrowDecoder(["key", "vlaue"])
    with pytest.raises(ValueError, match="twice"):
        ArrowDecoder(["key", "key"])
    with pytest.raises(ValueError, match="No column"):
        ArrowDecoder([])
    with pytest.raises(ValueError, match="max_rows=0"):
        ArrowDecoder(DEFAULT_COLUMNS, max_rows=0)


def test_the_error_survives_the_way_to_the_driver() -> None:
    error = CorruptBatchError("orders", 3, 17, "the checksum (CRC32C) is wrong")
    back = pickle.loads(pickle.dumps(error))
    assert str(back) == str(error) and back.offset == 17
    assert "orders-3@17: the checksum (CRC32C) is wrong." in str(error)


def test_what_was_compressed_well_need_not_be_in_memory_at_once(implementation: ModuleType) -> None:
    count = 80
    data = b"".join(
        build_batch([Record(None, bytes(1 << 20))], codec=Codec.ZSTD, base_offset=offset) for offset in range(count)
    )
    assert len(data) < 1 << 20
    decoder = ArrowDecoder(COLUMNS, implementation=implementation)
    before, most, found = pa.total_allocated_bytes(), 0, []
    for batch in decoder.pieces(data, topic="orders", partition=0, start=0, stop=count):
        found += batch.column("offset").to_pylist()
        most = max(most, pa.total_allocated_bytes() - before)
    assert found == list(range(count))
    assert most < 60 << 20  # of 80 MB
