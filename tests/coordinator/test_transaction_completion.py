"""A transaction is complete when its own markers are written, and not by those of another."""

from millstream.coordinator.transaction.transaction import TransactionState

from .transaction_run import TransactionRun, partition

A, B = partition("a"), partition("b")


def test_the_markers_of_one_do_not_complete_the_next() -> None:
    """Whoever writes down that a transaction is complete tries again if it takes long; by then the next may be
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
