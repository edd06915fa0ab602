"""EndTxn and its siblings while the markers of the previous end are being written: the client tries again.

The same requests to Apache Kafka 4.3.1 are in `tests/system/cluster/pending_end.golden`.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.model.identifiers import ProducerIdentity
from millstream.node.transactions.core.shard import encode
from millstream.node.transactions.core.transaction import MAX_EPOCH, TransactionState
from tests.unit.node.coordination.transaction_run import TransactionRun, partition

A, B = partition("a"), partition("b")


@contextmanager
def refused(code: ErrorCode) -> Iterator[None]:
    with pytest.raises(KafkaError) as raised:
        yield
    assert raised.value.code == code


def _by_client(run: TransactionRun, client: ProducerIdentity, version: int, committed: bool) -> None:
    run.end(client, committed, version=version)


def _by_next_instance(run: TransactionRun, client: ProducerIdentity, version: int, committed: bool) -> None:
    with refused(ErrorCode.CONCURRENT_TRANSACTIONS):
        run.start()


def _by_timeout(run: TransactionRun, client: ProducerIdentity, version: int, committed: bool) -> None:
    run.wait(70_000)


End = Callable[[TransactionRun, ProducerIdentity, int, bool], None]


@pytest.mark.parametrize("committed", [True, False])
def test_the_next_end_of_a_healthy_client_is_not_fenced(committed: bool) -> None:
    """The client has its next epoch before the markers are written, and aborts what it never began."""
    run = TransactionRun()
    client = run.begin()
    run.add(client, A)
    after = run.end(client, committed)
    for wish in (True, False):
        with refused(ErrorCode.CONCURRENT_TRANSACTIONS):
            run.end(after, wish)
    run.complete()
    assert run.end(after, committed=False) == ProducerIdentity(after.producer_id, after.epoch + 1)


@pytest.mark.parametrize("transaction_version", [0, 1, 2])
@pytest.mark.parametrize("ends", [_by_client, _by_next_instance, _by_timeout])
@pytest.mark.parametrize("version", [0, 2])
@pytest.mark.parametrize("committed", [True, False])
def test_all_clients_wait_for_a_pending_end(transaction_version: int, ends: End, version: int, committed: bool) -> None:
    run = TransactionRun(transaction_version)
    client = run.begin()
    run.add(client, A, version=version)
    ends(run, client, version, committed)
    decided = run.known()
    assert decided.is_decided
    now = decided.client.epoch
    for epoch in range(now - 2, now + 2):
        producer = ProducerIdentity(client.producer_id, epoch)
        for wish in (True, False):
            with refused(ErrorCode.CONCURRENT_TRANSACTIONS):
                run.end(producer, wish)
            with refused(ErrorCode.CONCURRENT_TRANSACTIONS if epoch == now else ErrorCode.PRODUCER_FENCED):
                run.end(producer, wish, version=0)
        with refused(ErrorCode.CONCURRENT_TRANSACTIONS):
            run.add(producer, B)
        with refused(ErrorCode.CONCURRENT_TRANSACTIONS if epoch == now else ErrorCode.PRODUCER_FENCED):
            run.shard.verify("tx", producer, [A])
        with refused(ErrorCode.CONCURRENT_TRANSACTIONS):
            run.start(expected=producer)
    with refused(ErrorCode.CONCURRENT_TRANSACTIONS):
        run.start()
    assert run.known() == decided


def test_a_client_that_has_a_new_id_already_waits_too() -> None:
    """Its epochs ran out with the end that is pending: the new id counts when that is complete."""
    run = TransactionRun()
    first = run.begin()
    run.log.append(encode(replace(run.known(), producer_epoch=MAX_EPOCH - 1), 2))
    run.restart()
    last = ProducerIdentity(first.producer_id, MAX_EPOCH - 1)
    run.add(last, A)
    after = run.end(last)
    assert after.producer_id != last.producer_id
    for producer in (last, after):
        for wish in (True, False):
            with refused(ErrorCode.CONCURRENT_TRANSACTIONS):
                run.end(producer, wish)
        with refused(ErrorCode.CONCURRENT_TRANSACTIONS):
            run.add(producer, A)
    run.complete()
    assert run.end(last) == after, "the response did not arrive"
    assert run.end(after, committed=False) == ProducerIdentity(after.producer_id, 1)


def test_a_repeated_end_gets_its_response_when_the_end_is_complete() -> None:
    run = TransactionRun()
    client = run.begin()
    run.add(client, A)
    after = run.end(client)
    with refused(ErrorCode.CONCURRENT_TRANSACTIONS):
        run.end(client)
    run.restart()
    with refused(ErrorCode.CONCURRENT_TRANSACTIONS):
        run.end(client)
    run.complete()
    assert run.end(client) == after
    with refused(ErrorCode.INVALID_TXN_STATE):
        run.end(client, committed=False)
    assert run.known().state == TransactionState.COMPLETE_COMMIT
