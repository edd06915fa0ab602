"""All clients over topics of which only the last segment is on the broker's disk: the rest is in an S3 server.

The tests are those of the ordinary topics that write records and read or search them, with the fixtures of this folder.
One that is quick runs always; the others are slow. A transaction that stays open is left out: its records are not
tiered. Cleaned topics are left out: they cannot be tiered. Groups and queues are in `test_tiered_groups.py`.
"""

from collections.abc import Callable

import pytest

from tests.system.clients import (
    brokers,
    corpus,
    test_admin,
    test_matrix,
    test_produce_and_consume,
    test_restart,
    test_transactions,
)
from tests.system.clients.client_program import ClientProgram
from tests.system.clients.test_matrix import Written, written  # noqa: F401  # a fixture
from tests.system.clients.test_transactions import log  # noqa: F401  # a fixture
from tests.system.clients.tiered.conftest import TIERED

SLOW: tuple[Callable[..., None], ...] = (
    test_matrix.test_client_reads_what_another_wrote,
    test_transactions.test_every_client_reads_transactions_of_every_client,
    test_transactions.test_offsets_are_committed_with_the_transaction,
    test_transactions.test_a_successor_fences_a_zombie,
    test_produce_and_consume.test_offset_out_of_range_resets_to_the_earliest,
    test_produce_and_consume.test_offset_out_of_range_is_an_error_without_reset,
    test_produce_and_consume.test_consumers_begin_at_a_timestamp,
    test_produce_and_consume.test_reading_from_the_middle_of_a_batch,
    test_produce_and_consume.test_broker_recompresses_where_the_topic_asks,
    test_produce_and_consume.test_broker_stamps_records_where_the_topic_asks,
    test_produce_and_consume.test_long_poll_wakes_on_new_data,
    test_produce_and_consume.test_pipelined_batches_are_all_written,
    test_admin.test_records_are_deleted,
    test_admin.test_offsets_are_listed,
    test_admin.test_offset_of_greatest_timestamp_is_listed,
    test_restart.test_restart_in_mid_produce_loses_nothing,
)
for each in SLOW:
    globals()[each.__name__] = pytest.mark.slow(each)
del each


@pytest.fixture
def restartable(broker: brokers.BrokerProcess, monkeypatch: pytest.MonkeyPatch) -> brokers.BrokerProcess:
    """The test writes records one by one: a segment for each would take minutes."""
    monkeypatch.delitem(TIERED, "segment.ms")
    monkeypatch.setitem(TIERED, "internal.segment.bytes", "20000")
    return broker


def test_client_reads_a_tiered_topic(
    client: ClientProgram,
    bootstrap: str,
    written: Written,  # noqa: F811
) -> None:
    expected = written("confluent-kafka")
    read = client.consume(bootstrap, test_matrix.topic_of("confluent-kafka"), test_matrix.PARTITION, len(expected))
    corpus.assert_same(read, expected)
