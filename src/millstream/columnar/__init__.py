"""Record batches as Arrow columns and back, for many records at once."""

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
