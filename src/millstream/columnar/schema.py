"""The columns of a record: the row of spark-sql-kafka, with the same types."""

from collections.abc import Sequence

import pyarrow as pa

from millstream.common.close_match import did_you_mean

HEADERS_TYPE = pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())])))
"""A record without headers has null here, not an empty list; so does spark-sql-kafka."""

TIMESTAMP_TYPE = pa.timestamp("us", "UTC")

RECORD_SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", TIMESTAMP_TYPE),
        ("timestampType", pa.int32()),
        ("headers", HEADERS_TYPE),
    ]
)

COLUMNS = tuple(RECORD_SCHEMA.names)
DEFAULT_COLUMNS = COLUMNS[:-1]
"""The columns of spark-sql-kafka without `includeHeaders`."""


def record_schema(columns: Sequence[str]) -> pa.Schema:
    """The schema of these columns, in this order; ValueError names the column that does not exist."""
    if not columns:
        raise ValueError(f"No column is given; columns are {', '.join(COLUMNS)}.")
    for name in columns:
        if name not in COLUMNS:
            hint = did_you_mean(name, COLUMNS, cutoff=0.5, otherwise=f"columns are {', '.join(COLUMNS)}.")
            raise ValueError(f"A record has no column {name!r}; {hint}")
    if len(set(columns)) != len(columns):
        raise ValueError(f"A column is twice in {', '.join(columns)}.")
    return pa.schema([RECORD_SCHEMA.field(name) for name in columns])
