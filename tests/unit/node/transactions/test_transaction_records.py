"""Records of `__transaction_state`: the bytes of Kafka 4.3.1's own TransactionLogKey and TransactionLogValue."""

import pytest

from millstream.node.transactions.core.shard import decode, encode, tombstone
from millstream.node.transactions.core.transaction import Transaction, TransactionState
from tests.unit.node.coordination.transaction_run import partition

KEY = "000000027478"
FULL = Transaction(
    transactional_id="tx",
    producer_id=7,
    producer_epoch=3,
    previous_producer_id=6,
    next_producer_id=9,
    next_producer_epoch=4,
    timeout_ms=60_000,
    state=TransactionState.ONGOING,
    partitions=frozenset((partition("b", 2), partition("a", 1), partition("a", 0))),
    start_ms=100,
    updated_ms=200,
    client_version=2,
)
PLAIN = Transaction(
    transactional_id="tx",
    producer_id=7,
    producer_epoch=3,
    timeout_ms=60_000,
    state=TransactionState.ONGOING,
    partitions=FULL.partitions,
    start_ms=100,
    updated_ms=200,
)
EMPTY = Transaction(
    transactional_id="tx", producer_id=7, producer_epoch=3, previous_producer_id=7, timeout_ms=60_000, updated_ms=200
)


@pytest.mark.parametrize(
    ("transaction", "level", "value"),
    [
        (
            FULL,
            2,
            "0001000000000000000700030000ea600103026103000000000000000100026202000000020000000000000000c8"
            "00000000000000640400080000000000000006010800000000000000090202000203020004",
        ),
        (
            PLAIN,
            0,
            "0000000000000000000700030000ea60010000000200016100000002000000000000000100016200000001000000"
            "0200000000000000c80000000000000064",
        ),
        (EMPTY, 1, "0001000000000000000700030000ea60000000000000000000c8ffffffffffffffff0100080000000000000007"),
    ],
)
def test_bytes_are_those_of_kafka(transaction: Transaction, level: int, value: str) -> None:
    record = encode(transaction, level)
    assert record.key.hex() == KEY
    assert record.value is not None and record.value.hex() == value
    assert decode(*record) == ("tx", transaction)


def test_a_tombstone_has_no_state() -> None:
    assert decode(*tombstone("tx")) == ("tx", None)


@pytest.mark.parametrize(("key", "value"), [("0001", "0001"), (KEY, "0007")])
def test_what_is_not_known_is_passed_over(key: str, value: str) -> None:
    assert decode(bytes.fromhex(key), bytes.fromhex(value)) is None


def test_states_have_kafkas_names() -> None:
    assert [state.label for state in TransactionState] == [
        "Empty",
        "Ongoing",
        "PrepareCommit",
        "PrepareAbort",
        "CompleteCommit",
        "CompleteAbort",
        "Dead",
        "PrepareEpochFence",
    ]
