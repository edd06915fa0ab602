"""The compiled functions under the names of `_pure`; ImportError if they were not built."""

from millstream.columnar._fast_reading import RowCollector
from millstream.columnar._fast_writing import encode_records, partition_by_key

__all__ = ["RowCollector", "encode_records", "partition_by_key"]
