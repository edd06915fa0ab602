"""A transaction is complete when its own markers are written, and not by those of another."""

import pytest

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.node.transactions.core.transaction import TransactionState
from tests.unit.node.coordination.transaction_run import TransactionRun, partition

A, B = partition("a"), partition("b")


def test_the_markers_of_one_do_not_complete_the_next() -> None:
    """The write that completes a transaction is tried again if it takes long; by then the next may be
    decided, which under version 1 has the same epoch."""
    run = TransactionRun(transaction_version=1)
    client = run.begin()
    run.add(client, A, version=0)
    run.end(client, version=0)
    first = run.complete()
    run.now_ms += 1
    run.add(client, B, version=0)
    run.end(client, version=0)
    run.run(lambda _: run.shard.complete(first, run.now_ms))
    assert run.known().state == TransactionState.PREPARE_COMMIT
    run.restart()
    assert run.decided["tx"].partitions == {B}
    run.complete()
    assert run.known().state == TransactionState.COMPLETE_COMMIT


def test_who_was_replaced_does_not_take_the_end_of_another_for_its_own() -> None:
    """Under version 2 an epoch that is one less is that of who ended the transaction. Where the end did not raise the
    epoch, it is that of a client that was replaced."""
    run = TransactionRun()
    replaced = run.begin()
    client = run.begin()
    run.add(client, A, version=0)
    assert run.end(client, version=0) == client
    for code in (ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.PRODUCER_FENCED):
        with pytest.raises(KafkaError) as refused:
            run.end(replaced)
        assert refused.value.code == code
        if run.decided:
            run.complete()
        run.restart()
    assert run.end(client, version=0) == client
