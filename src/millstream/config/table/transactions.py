"""Settings of transactions: timeouts, state topic, verification by partition leaders."""

import re

from millstream.config.setting import Allowed, Importance, Update, at_least, boolean, declared, integer, short, string

TRANSACTION_MAX_TIMEOUT_MS = integer(
    "transaction.max.timeout.ms",
    900_000,
    "The maximum `transaction.timeout.ms` of producers. Consumers with `read_committed` wait for open "
    "transactions, so a long transaction delays them.",
    unit="ms",
    allowed=at_least(1),
    importance=Importance.HIGH,
)
TRANSACTIONAL_ID_EXPIRATION_MS = integer(
    "transactional.id.expiration.ms",
    7 * 24 * 3600 * 1000,
    "The time for which a transactional id is kept after its last transaction. A producer that returns later gets"
    " a new producer id.",
    unit="ms",
    allowed=at_least(1),
    importance=Importance.HIGH,
)
TRANSACTION_ABORT_TIMED_OUT_TRANSACTION_CLEANUP_INTERVAL_MS = integer(
    "transaction.abort.timed.out.transaction.cleanup.interval.ms",
    10_000,
    "The interval at which transactions that exceeded their timeout are aborted.",
    unit="ms",
    allowed=at_least(1),
    importance=Importance.LOW,
)
TRANSACTION_REMOVE_EXPIRED_TRANSACTION_CLEANUP_INTERVAL_MS = integer(
    "transaction.remove.expired.transaction.cleanup.interval.ms",
    3_600_000,
    "The interval at which expired transactional ids (`transactional.id.expiration.ms`) are removed.",
    unit="ms",
    allowed=at_least(1),
    importance=Importance.LOW,
)
TRANSACTION_TWO_PHASE_COMMIT_ENABLE = boolean(
    "transaction.two.phase.commit.enable",
    False,
    "Allows producers to take part in two-phase commits (KIP-939). Their transactions have no timeout: the "
    "producer or an operator must end each prepared transaction.",
    importance=Importance.LOW,
)
TRANSACTION_PARTITION_VERIFICATION_ENABLE = boolean(
    "transaction.partition.verification.enable",
    True,
    "The partition leader verifies with the transaction coordinator that a transaction is open before it appends "
    "the transaction's first batch (KIP-890). Without it, a delayed batch can start a transaction that is never "
    "ended.",
    importance=Importance.LOW,
    update=Update.CLUSTER_WIDE,
)
_HOLD = re.compile(r"(\d{1,5})@[A-Za-z0-9_-]{1,64}")
LONGEST_HOLD_MS = 30_000


def hold_ms(value: str) -> int:
    """The time in a value of `millstream.transaction.hold`; 0 if it is empty."""
    match = _HOLD.fullmatch(value)
    return int(match[1]) if match else 0


TRANSACTION_HOLD = string(
    "millstream.transaction.hold",
    "",
    "For `millstream backup create`: no transaction is committed or aborted for this time, so that the backup has each "
    "transaction whole or not at all. `MS@NAME`: milliseconds, at most 30000, from the moment when a broker learns a "
    "value with another name. Requests that end a transaction wait. Millstream only.",
    allowed=Allowed(
        f"empty or MS@NAME with at most {LONGEST_HOLD_MS} ms",
        lambda value: not value or 0 < hold_ms(value) <= LONGEST_HOLD_MS,
    ),
    importance=Importance.LOW,
    update=Update.CLUSTER_WIDE,
)
ADD_PARTITIONS_TO_TXN_RETRY_BACKOFF_MS = integer(
    "add.partitions.to.txn.retry.backoff.ms",
    20,
    "The wait before a partition leader repeats a verification, if the coordinator is still completing the "
    "producer's previous transaction.",
    unit="ms",
    allowed=at_least(1),
    importance=Importance.HIGH,
)
ADD_PARTITIONS_TO_TXN_RETRY_BACKOFF_MAX_MS = integer(
    "add.partitions.to.txn.retry.backoff.max.ms",
    100,
    "The maximum time for which a partition leader repeats the verification. After it, the producer gets a "
    "retriable error.",
    unit="ms",
    allowed=at_least(0),
    importance=Importance.HIGH,
)
TRANSACTION_STATE_LOG_NUM_PARTITIONS = integer(
    "transaction.state.log.num.partitions",
    50,
    "The number of partitions of `__transaction_state` when it is created.",
    allowed=at_least(1),
    importance=Importance.HIGH,
)
TRANSACTION_STATE_LOG_REPLICATION_FACTOR = short(
    "transaction.state.log.replication.factor",
    3,
    "The replication factor of `__transaction_state`. With fewer brokers, each broker has one replica.",
    allowed=at_least(1),
    importance=Importance.HIGH,
)
TRANSACTION_STATE_LOG_MIN_ISR = integer(
    "transaction.state.log.min.isr",
    2,
    "`min.insync.replicas` of `__transaction_state` when it is created.",
    allowed=at_least(1),
    importance=Importance.HIGH,
)
TRANSACTION_STATE_LOG_SEGMENT_BYTES = integer(
    "transaction.state.log.segment.bytes",
    100 << 20,
    "The size at which a segment of `__transaction_state` is closed. Small segments make compaction and loading "
    "faster.",
    unit="bytes",
    allowed=at_least(1 << 20),
    importance=Importance.HIGH,
)

SETTINGS = declared(globals())
