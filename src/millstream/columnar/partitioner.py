"""Which partition a key belongs to, for whole columns of keys: murmur2, as Java's producer."""

from typing import Any

import numpy as np
import pyarrow as pa

from millstream.columnar.compiled import implementation

NO_KEY = -1


def partition_by_key(keys: pa.Array, count: int) -> "np.ndarray[Any, np.dtype[np.int32]]":
    """The partition of each key out of `count`; -1 for null, which may go anywhere."""
    if count < 1:
        raise ValueError(f"A topic has at least one partition, not {count}.")
    if keys.type != pa.binary():
        keys = keys.cast(pa.binary())
    found: np.ndarray[Any, np.dtype[np.int32]] = implementation.partition_by_key(keys, count)
    return found
