"""Record batches to Arrow columns and back; the one place that opens batches by the million."""

from millstream.columnar.decoder import ArrowDecoder, CorruptBatchError
from millstream.columnar.encoder import ArrowEncoder, EncodedBatch, partition_by_key, stamp
from millstream.columnar.schema import COLUMNS, DEFAULT_COLUMNS, RECORD_SCHEMA, record_schema

__all__ = [
    "COLUMNS",
    "DEFAULT_COLUMNS",
    "RECORD_SCHEMA",
    "ArrowDecoder",
    "ArrowEncoder",
    "CorruptBatchError",
    "EncodedBatch",
    "partition_by_key",
    "record_schema",
    "stamp",
]
