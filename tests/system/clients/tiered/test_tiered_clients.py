"""All clients over topics of which only the last segment is on the broker's disk: the rest is in an S3 server.

The tests are those of the ordinary topics that write several batches, with the fixtures of this folder. One that is
quick runs always; the others are slow. A transaction that stays open is left out: its records are not tiered.
"""

import pytest

from tests.system.clients import corpus, test_matrix, test_produce_and_consume, test_transactions
from tests.system.clients.client_program import ClientProgram
from tests.system.clients.test_matrix import Written, written  # noqa: F401  # a fixture
from tests.system.clients.test_transactions import log  # noqa: F401  # a fixture

test_client_reads_what_another_wrote = pytest.mark.slow(test_matrix.test_client_reads_what_another_wrote)
test_every_client_reads_transactions_of_every_client = pytest.mark.slow(
    test_transactions.test_every_client_reads_transactions_of_every_client
)
test_offsets_are_committed_with_the_transaction = pytest.mark.slow(
    test_transactions.test_offsets_are_committed_with_the_transaction
)
test_a_successor_fences_a_zombie = pytest.mark.slow(test_transactions.test_a_successor_fences_a_zombie)
test_pipelined_batches_are_all_written = pytest.mark.slow(
    test_produce_and_consume.test_pipelined_batches_are_all_written
)


def test_client_reads_a_tiered_topic(
    client: ClientProgram,
    bootstrap: str,
    written: Written,  # noqa: F811
) -> None:
    expected = written("confluent-kafka")
    read = client.consume(bootstrap, test_matrix.topic_of("confluent-kafka"), test_matrix.PARTITION, len(expected))
    corpus.assert_same(read, expected)
