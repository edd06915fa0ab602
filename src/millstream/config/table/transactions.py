"""Transactions: time-outs, how their state is kept, what partition leaders ask of the coordinator."""

from millstream.config.setting import Importance, Update, at_least, boolean, declared, integer, short

TRANSACTION_MAX_TIMEOUT_MS = integer(
    "transaction.max.timeout.ms",
    900_000,
    "The longest time-out a transactional producer may ask for (its `transaction.timeout.ms`). Readers of committed "
    "records wait for open transactions, so a long one can hold them up.",
    unit="ms",
    allowed=at_least(1),
    importance=Importance.HIGH,
)
TRANSACTIONAL_ID_EXPIRATION_MS = integer(
    "transactional.id.expiration.ms",
    7 * 24 * 3600 * 1000,
    "How long a transactional id is remembered after its last transaction. A producer that comes back later gets a new "
    "producer id.",
    unit="ms",
    allowed=at_least(1),
    importance=Importance.HIGH,
)
TRANSACTION_ABORT_TIMED_OUT_TRANSACTION_CLEANUP_INTERVAL_MS = integer(
    "transaction.abort.timed.out.transaction.cleanup.interval.ms",
    10_000,
    "How often transactions are looked for that have taken longer than their time-out, to abort them.",
    unit="ms",
    allowed=at_least(1),
    importance=Importance.LOW,
)
TRANSACTION_REMOVE_EXPIRED_TRANSACTION_CLEANUP_INTERVAL_MS = integer(
    "transaction.remove.expired.transaction.cleanup.interval.ms",
    3_600_000,
    "How often transactional ids are looked for that have expired (`transactional.id.expiration.ms`).",
    unit="ms",
    allowed=at_least(1),
    importance=Importance.LOW,
)
TRANSACTION_TWO_PHASE_COMMIT_ENABLE = boolean(
    "transaction.two.phase.commit.enable",
    False,
    "Whether producers may take part in two-phase commits (KIP-939). Their transactions have no time-out: whoever "
    "prepared one must end it, or an operator must.",
    importance=Importance.LOW,
)
TRANSACTION_PARTITION_VERIFICATION_ENABLE = boolean(
    "transaction.partition.verification.enable",
    True,
    "Whether a partition's leader asks the transaction coordinator before it takes the first batch of a transaction "
    "(KIP-890). Otherwise a batch that comes too late can open a transaction that nobody ends.",
    importance=Importance.LOW,
    update=Update.CLUSTER_WIDE,
)
ADD_PARTITIONS_TO_TXN_RETRY_BACKOFF_MS = integer(
    "add.partitions.to.txn.retry.backoff.ms",
    20,
    "How long a partition's leader waits before it asks the coordinator again that is still busy with the end of the "
    "producer's previous transaction.",
    unit="ms",
    allowed=at_least(1),
    importance=Importance.HIGH,
)
ADD_PARTITIONS_TO_TXN_RETRY_BACKOFF_MAX_MS = integer(
    "add.partitions.to.txn.retry.backoff.max.ms",
    100,
    "How long a partition's leader goes on asking so, before the producer is told to try again.",
    unit="ms",
    allowed=at_least(0),
    importance=Importance.HIGH,
)
TRANSACTION_STATE_LOG_NUM_PARTITIONS = integer(
    "transaction.state.log.num.partitions",
    50,
    "How many partitions `__transaction_state` gets when it is created.",
    allowed=at_least(1),
    importance=Importance.HIGH,
)
TRANSACTION_STATE_LOG_REPLICATION_FACTOR = short(
    "transaction.state.log.replication.factor",
    3,
    "How many replicas `__transaction_state` gets; with fewer brokers, one on each of them.",
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
    "The size at which a segment of `__transaction_state` is closed, kept small so that it is cleaned and loaded fast.",
    unit="bytes",
    allowed=at_least(1 << 20),
    importance=Importance.HIGH,
)

SETTINGS = declared(globals())
