"""Keys to partitions as Java's producer chooses them."""

from types import ModuleType

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millstream.client.partitioners import java_partition
from millstream.columnar import partition_by_key
from tests.examples import examples


@given(st.lists(st.none() | st.binary(max_size=30), max_size=20), st.integers(1, 1 << 20), st.integers(0, 3))
@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_key_goes_where_java_puts_it(
    implementation: ModuleType, keys: list[bytes | None], count: int, skipped: int
) -> None:
    found = implementation.partition_by_key(pa.array(keys, pa.binary()).slice(skipped), count)
    assert found.tolist() == [-1 if key is None else java_partition(key, count) for key in keys[skipped:]]


def test_strings_are_keys_too() -> None:
    assert partition_by_key(pa.array(["a", None]), 7).tolist() == [java_partition(b"a", 7), -1]
    assert partition_by_key(pa.nulls(2), 7).tolist() == [-1, -1]


def test_zero_partitions_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one partition, not 0"):
        partition_by_key(pa.array([b"a"]), 0)
