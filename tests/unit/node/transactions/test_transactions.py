"""The transaction coordinator's state machine: epochs, outcomes, repetitions, time-outs, prepared transactions."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.model.identifiers import Marker, ProducerIdentity
from millstream.node.coordination.core.expression import Expression
from millstream.node.transactions.core.shard import TransactionFilter, encode
from millstream.node.transactions.core.transaction import MAX_EPOCH, TransactionState
from tests.unit.node.coordination.transaction_run import TransactionRun, partition

A, B = partition("a"), partition("b", 3)


@contextmanager
def refused(code: ErrorCode) -> Iterator[None]:
    with pytest.raises(KafkaError) as raised:
        yield
    assert raised.value.code == code


@pytest.fixture
def run() -> TransactionRun:
    return TransactionRun()


@pytest.fixture
def old() -> TransactionRun:
    """A cluster whose transactions do not raise epochs."""
    return TransactionRun(transaction_version=1)


def exhausted(run: TransactionRun, below: int = 1) -> ProducerIdentity:
    """A client whose epochs are about to run out."""
    client = run.start().producer
    last = replace(run.known(), producer_epoch=MAX_EPOCH - below)
    run.log.append(encode(last, run.settings.transaction_version))
    run.restart()
    return ProducerIdentity(client.producer_id, MAX_EPOCH - below)


# Who a producer is


def test_the_first_producer_gets_a_new_id_and_epoch_0(run: TransactionRun) -> None:
    assert run.start().producer == ProducerIdentity(1000, 0)
    assert run.start("other").producer == ProducerIdentity(1001, 0)


def test_a_new_instance_raises_the_epoch_and_fences_the_one_before(run: TransactionRun) -> None:
    first = run.start().producer
    second = run.start().producer
    assert second == ProducerIdentity(1000, 1)
    with refused(ErrorCode.PRODUCER_FENCED):
        run.add(first, A)
    run.add(second, A)


def test_a_new_instance_aborts_what_is_open_and_comes_again(run: TransactionRun) -> None:
    first = run.start().producer
    run.add(first, A)
    with refused(ErrorCode.CONCURRENT_TRANSACTIONS):
        run.start()
    assert run.known().state == TransactionState.PREPARE_ABORT
    with refused(ErrorCode.CONCURRENT_TRANSACTIONS):
        run.start()
    with refused(ErrorCode.CONCURRENT_TRANSACTIONS):
        run.end(first)
    assert run.complete().marker(5) == Marker(1000, 1, 5, False, 2)
    assert run.start().producer == ProducerIdentity(1000, 2)
    for committed in (True, False):
        with refused(ErrorCode.PRODUCER_FENCED):
            run.end(first, committed)


def test_under_version_1_fencing_raises_the_epoch_once(old: TransactionRun) -> None:
    client = old.start().producer
    old.add(client, A, version=0)
    with refused(ErrorCode.CONCURRENT_TRANSACTIONS):
        old.start()
    assert old.complete().marker(5) == Marker(1000, 1, 5, False, 0)
    assert old.start().producer == ProducerIdentity(1000, 2)


def test_a_producer_that_names_itself_goes_on_with_the_next_epoch(run: TransactionRun) -> None:
    client = run.start().producer
    second = run.start(expected=client).producer
    assert second == ProducerIdentity(1000, 1)
    assert run.start(expected=client).producer == second, "it did not get the response"
    third = run.start(expected=second).producer
    assert third == ProducerIdentity(1000, 2)
    with refused(ErrorCode.PRODUCER_FENCED):
        run.start(expected=client)


def test_who_was_replaced_does_not_come_back_by_naming_itself(run: TransactionRun) -> None:
    client = run.start().producer
    run.start()
    with refused(ErrorCode.PRODUCER_FENCED):
        run.start(expected=client)
    with refused(ErrorCode.PRODUCER_FENCED):
        run.start(expected=ProducerIdentity(77, 0))


def test_a_producer_that_was_forgotten_gets_a_new_id(run: TransactionRun) -> None:
    assert run.start(expected=ProducerIdentity(77, 5)).producer == ProducerIdentity(1000, 0)


@pytest.mark.parametrize("names_itself", [False, True])
def test_when_epochs_run_out_there_is_a_new_id(run: TransactionRun, names_itself: bool) -> None:
    last = exhausted(run)
    fresh = run.start(expected=last if names_itself else None).producer
    assert fresh == ProducerIdentity(1001, 0)
    assert run.known().previous_producer_id == 1000
    if names_itself:
        assert run.start(expected=last).producer == fresh, "it did not get the response"
    else:
        with refused(ErrorCode.PRODUCER_FENCED):
            run.start(expected=last)


# Partitions


def test_partitions_are_added_once(run: TransactionRun) -> None:
    client = run.start().producer
    run.add(client, A)
    written = len(run.log)
    run.add(client, A)
    assert len(run.log) == written
    run.now_ms += 5
    run.add(client, A, B)
    assert run.known().partitions == {A, B}
    assert run.known().start_ms == run.now_ms - 5


def test_partitions_are_verified(run: TransactionRun) -> None:
    client = run.start().producer
    run.add(client, A)
    assert run.shard.verify("tx", client, [A, B]) == {A: ErrorCode.NONE, B: ErrorCode.TRANSACTION_ABORTABLE}
    with refused(ErrorCode.PRODUCER_FENCED):
        run.shard.verify("tx", ProducerIdentity(1000, 7), [A])
    with refused(ErrorCode.INVALID_PRODUCER_ID_MAPPING):
        run.shard.verify("tx", ProducerIdentity(7, 0), [A])
    with refused(ErrorCode.INVALID_PRODUCER_ID_MAPPING):
        run.shard.verify("none", client, [A])
    after = run.end(client)
    with refused(ErrorCode.CONCURRENT_TRANSACTIONS):
        run.shard.verify("tx", after, [A])


# The end


@pytest.mark.parametrize("committed", [True, False])
def test_each_transaction_has_its_own_epoch(run: TransactionRun, committed: bool) -> None:
    client = run.start().producer
    run.add(client, A, B)
    after = run.end(client, committed)
    assert after == ProducerIdentity(1000, 1)
    with refused(ErrorCode.CONCURRENT_TRANSACTIONS):
        run.add(after, A)
    decided = run.complete()
    assert decided.partitions == {A, B}
    assert decided.marker(3) == Marker(1000, 1, 3, committed, 2)
    assert run.known().state == (TransactionState.COMPLETE_COMMIT if committed else TransactionState.COMPLETE_ABORT)
    assert run.known().partitions == frozenset()
    assert run.end(client, committed) == after, "it did not get the response"
    with refused(ErrorCode.INVALID_TXN_STATE):
        run.end(client, not committed)
    run.add(after, B)


@pytest.mark.parametrize("committed", [True, False])
def test_under_version_1_the_epoch_stays(old: TransactionRun, committed: bool) -> None:
    client = old.start().producer
    old.add(client, A, version=0)
    assert old.end(client, committed, version=0) == client
    assert old.complete().marker(3) == Marker(1000, 0, 3, committed, 0)
    assert old.end(client, committed, version=0) == client
    with refused(ErrorCode.INVALID_TXN_STATE):
        old.end(client, not committed, version=0)


def test_without_partitions_there_is_nothing_to_commit(run: TransactionRun) -> None:
    client = run.start().producer
    with refused(ErrorCode.INVALID_TXN_STATE):
        run.end(client, True)
    with refused(ErrorCode.INVALID_TXN_STATE):
        run.end(client, False, version=0)
    after = run.end(client, False)
    assert after == ProducerIdentity(1000, 1)
    assert run.complete().partitions == frozenset()
    again = run.end(after, False)
    assert again == ProducerIdentity(1000, 2)
    assert run.known().start_ms == run.now_ms


def test_the_end_that_uses_up_the_epochs_brings_a_new_id(run: TransactionRun) -> None:
    last = exhausted(run)
    run.add(last, A)
    after = run.end(last)
    assert after == ProducerIdentity(1001, 0)
    assert run.known().producer == ProducerIdentity(1000, MAX_EPOCH)
    with refused(ErrorCode.CONCURRENT_TRANSACTIONS):
        run.end(last)
    with refused(ErrorCode.CONCURRENT_TRANSACTIONS):
        run.add(after, A)
    run.restart()
    assert run.complete().marker(3).producer_epoch == MAX_EPOCH
    assert run.end(last) == after, "it did not get the response"
    run.add(after, A)


def test_whoever_cannot_be_raised_any_more_can_still_be_fenced(run: TransactionRun) -> None:
    last = exhausted(run)
    run.add(last, A)
    with refused(ErrorCode.CONCURRENT_TRANSACTIONS):
        run.start()
    assert run.complete().marker(3).producer_epoch == MAX_EPOCH
    assert run.start().producer == ProducerIdentity(1001, 0)


def test_a_write_that_fails_changes_nothing(run: TransactionRun) -> None:
    client = run.start().producer
    run.add(client, A)
    before = dict(run.shard.transactions)
    run.fail_writes = KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "disk full")
    with refused(ErrorCode.COORDINATOR_NOT_AVAILABLE):
        run.end(client)
    with refused(ErrorCode.COORDINATOR_NOT_AVAILABLE):
        run.start()
    run.fail_writes = None
    assert run.shard.transactions == before and not run.decided


def test_the_next_coordinator_finishes_what_was_decided(run: TransactionRun) -> None:
    client = run.start().producer
    run.add(client, A)
    after = run.end(client)
    run.restart()
    assert run.complete().marker(9) == Marker(1000, 1, 9, True, 2)
    run.restart()
    assert not run.decided
    assert run.end(client) == after


def test_completing_twice_is_completing_once(run: TransactionRun) -> None:
    client = run.start().producer
    run.add(client, A)
    after = run.end(client)
    decided = run.decided["tx"]
    run.complete()
    run.add(after, B)
    run.run(lambda _: run.shard.complete(decided, run.now_ms))
    assert run.known().state == TransactionState.ONGOING


# Time


def test_what_takes_too_long_is_aborted_and_its_client_may_go_on(run: TransactionRun) -> None:
    client = run.start(timeout_ms=5000).producer
    run.add(client, A)
    run.wait(4000)
    assert run.known().state == TransactionState.ONGOING
    run.wait(3000)
    assert run.known().state == TransactionState.PREPARE_ABORT
    for committed in (True, False):
        with refused(ErrorCode.CONCURRENT_TRANSACTIONS):
            run.end(client, committed)
    assert run.complete().marker(3) == Marker(1000, 1, 3, False, 2)
    with refused(ErrorCode.PRODUCER_FENCED):
        run.add(client, A)
    with refused(ErrorCode.INVALID_TXN_STATE):
        run.end(client)
    after = run.end(client, committed=False)
    assert after == ProducerIdentity(1000, 1)
    assert run.start(expected=client).producer == after, "or it begins again with its identity"
    run.add(after, A)


def test_under_version_1_what_takes_too_long_fences_its_client(old: TransactionRun) -> None:
    client = old.start(timeout_ms=5000).producer
    old.add(client, A, version=0)
    old.wait(7000)
    old.complete()
    for committed in (True, False):
        with refused(ErrorCode.PRODUCER_FENCED):
            old.end(client, committed, version=0)


def test_who_has_no_epochs_left_and_takes_too_long_is_fenced(run: TransactionRun) -> None:
    last = exhausted(run)
    run.add(last, A)
    run.wait(10_000_000)
    assert run.complete().marker(3).producer_epoch == MAX_EPOCH
    with refused(ErrorCode.INVALID_TXN_STATE):
        run.end(last)
    with refused(ErrorCode.PRODUCER_FENCED):
        run.end(last, committed=False)
    with refused(ErrorCode.PRODUCER_FENCED):
        run.start(expected=last)
    assert run.start().producer == ProducerIdentity(1001, 0)


def test_time_goes_on_for_a_transaction_that_was_loaded(run: TransactionRun) -> None:
    client = run.start(timeout_ms=5000).producer
    run.add(client, A)
    run.restart()
    run.wait(6000)
    assert run.known().state == TransactionState.PREPARE_ABORT


def test_many_that_are_late_are_aborted_in_turn(run: TransactionRun) -> None:
    many = [partition("t", index) for index in range(10_000)]
    for number in range(8):
        client = run.start(f"tx-{number}", timeout_ms=5000).producer
        run.add(client, *many, transactional_id=f"tx-{number}")
    run.wait(6000)
    assert 0 < len(run.decided) < 8
    for _ in range(8):
        run.wait(100)
    assert len(run.decided) == 8


def test_ids_that_no_one_uses_are_forgotten(run: TransactionRun) -> None:
    run.start("old")
    client = run.start("open").producer
    run.add(client, A, transactional_id="open")
    run.start("open-for-ever", two_phase=True)
    run.add(ProducerIdentity(1002, 0), A, transactional_id="open-for-ever")
    run.wait(900_000)
    run.start("young")
    run.wait(200_000)
    assert set(run.shard.transactions) == {"open", "open-for-ever", "young"}
    run.restart()
    assert set(run.shard.transactions) == {"open", "open-for-ever", "young"}
    with refused(ErrorCode.INVALID_PRODUCER_ID_MAPPING):
        run.add(ProducerIdentity(1000, 0), A, transactional_id="old")


# Prepared transactions (KIP-939)


def test_a_prepared_transaction_has_no_time_out(run: TransactionRun) -> None:
    client = run.start(two_phase=True).producer
    run.add(client, A)
    run.wait(10_000_000)
    assert run.known().state == TransactionState.ONGOING


@pytest.mark.parametrize("committed", [True, False])
def test_a_later_client_ends_what_was_prepared(run: TransactionRun, committed: bool) -> None:
    writer = run.start(two_phase=True).producer
    run.add(writer, A)
    begun = run.start(two_phase=True, keep=True)
    assert begun.producer == ProducerIdentity(1000, 1)
    assert begun.ongoing == writer
    run.restart()
    for act in (lambda: run.add(writer, B), lambda: run.end(writer, committed)):
        with refused(ErrorCode.PRODUCER_FENCED):
            act()
    with refused(ErrorCode.INVALID_TXN_STATE):
        run.add(begun.producer, B)
    assert run.shard.verify("tx", begun.producer, [A]) == {A: ErrorCode.TRANSACTION_ABORTABLE}
    after = run.end(begun.producer, committed)
    assert after == ProducerIdentity(1000, 2)
    for client in (writer, begun.producer, after):
        with refused(ErrorCode.CONCURRENT_TRANSACTIONS):
            run.end(client, committed)
    run.restart()
    assert run.complete().marker(3) == Marker(1000, 1, 3, committed, 2)
    assert run.known().producer == after
    with refused(ErrorCode.PRODUCER_FENCED):
        run.end(writer, committed)
    assert run.end(begun.producer, committed) == after, "it did not get the response"
    run.add(after, B)


def test_of_several_that_recover_the_last_counts(run: TransactionRun) -> None:
    writer = run.start(two_phase=True).producer
    run.add(writer, A)
    first = run.start(two_phase=True, keep=True).producer
    begun = run.start(two_phase=True, keep=True)
    assert begun.producer == ProducerIdentity(1000, 2) and begun.ongoing == writer
    with refused(ErrorCode.PRODUCER_FENCED):
        run.end(first)
    assert run.end(begun.producer) == ProducerIdentity(1000, 3)
    assert run.complete().marker(3).producer_epoch == 1


def test_with_nothing_open_there_is_nothing_to_keep(run: TransactionRun) -> None:
    run.start(two_phase=True)
    begun = run.start(two_phase=True, keep=True)
    assert begun.producer == ProducerIdentity(1000, 1) and begun.ongoing is None


def test_who_does_not_keep_what_was_prepared_aborts_it(run: TransactionRun) -> None:
    writer = run.start(two_phase=True).producer
    run.add(writer, A)
    kept = run.start(two_phase=True, keep=True).producer
    with refused(ErrorCode.CONCURRENT_TRANSACTIONS):
        run.start(two_phase=True)
    assert run.complete().marker(3) == Marker(1000, 1, 3, False, 2)
    fresh = run.start(two_phase=True).producer
    assert fresh == ProducerIdentity(1000, 3)
    with refused(ErrorCode.PRODUCER_FENCED):
        run.end(kept)


def test_a_kept_transaction_whose_client_has_no_epochs_left(run: TransactionRun) -> None:
    writer = exhausted(run, below=2)
    run.add(writer, A)
    first = run.start(two_phase=True, keep=True)
    assert first.producer == ProducerIdentity(1000, MAX_EPOCH - 1)
    second = run.start(two_phase=True, keep=True)
    assert second.producer == ProducerIdentity(1001, 0) and second.ongoing == writer
    assert run.end(second.producer) == ProducerIdentity(1001, 1)
    assert run.complete().marker(3) == Marker(1000, MAX_EPOCH - 1, 3, True, 2)
    run.add(ProducerIdentity(1001, 1), A)


# Lists


def test_filters_choose_the_transactions_that_are_listed(run: TransactionRun) -> None:
    client = run.start("alpha").producer
    run.add(client, A, transactional_id="alpha")
    run.start("beta")
    run.now_ms += 500

    def found(**wanted: object) -> list[str]:
        chosen = TransactionFilter(**wanted)  # type: ignore[arg-type]
        return [name for name, each in run.shard.transactions.items() if chosen.matches(each, run.now_ms)]

    assert found() == ["alpha", "beta"]
    assert found(states={TransactionState.ONGOING}) == ["alpha"]
    assert found(states=set()) == []
    assert found(producer_ids={1001}) == ["beta"]
    assert found(longer_than_ms=499) == ["alpha", "beta"]
    assert found(longer_than_ms=500) == ["beta"]
    assert found(pattern=Expression("al.*", "TransactionalIdPattern")) == ["alpha"]
    assert found(pattern=Expression("al", "TransactionalIdPattern")) == []
