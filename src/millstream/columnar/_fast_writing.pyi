from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

def encode_records(
    keys: pa.Array, values: pa.Array, headers: pa.Array | None, timestamps: pa.Array, max_bytes: int
) -> Iterator[tuple[bytearray, int, int, int]]: ...
def partition_by_key(keys: pa.Array, count: int) -> np.ndarray[Any, np.dtype[np.int32]]: ...
