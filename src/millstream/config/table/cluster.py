"""Settings of the cluster: metadata quorum, brokers and controller, replication."""

from millstream.config.setting import (
    LONG_MAX,
    Importance,
    Update,
    at_least,
    boolean,
    declared,
    integer,
    listed,
    long,
    optional_string,
)

# The metadata quorum

CONTROLLER_QUORUM_ELECTION_TIMEOUT_MS = integer(
    "controller.quorum.election.timeout.ms",
    1000,
    "The time a candidate waits for votes before it starts another election.",
    unit="ms",
    allowed=at_least(0),
    importance=Importance.HIGH,
)
CONTROLLER_QUORUM_FETCH_TIMEOUT_MS = integer(
    "controller.quorum.fetch.timeout.ms",
    2000,
    "The time without a response from the leader after which a voter starts an election. A leader that has not "
    "received fetches from a majority of the voters for one and a half times as long resigns.",
    unit="ms",
    allowed=at_least(0),
    importance=Importance.HIGH,
)
CONTROLLER_QUORUM_ELECTION_BACKOFF_MAX_MS = integer(
    "controller.quorum.election.backoff.max.ms",
    1000,
    "The maximum wait after an election without a winner.",
    unit="ms",
    allowed=at_least(0),
    importance=Importance.HIGH,
)
CONTROLLER_QUORUM_REQUEST_TIMEOUT_MS = integer(
    "controller.quorum.request.timeout.ms",
    2000,
    "The time a node waits for the response of a voter.",
    unit="ms",
    allowed=at_least(0),
    importance=Importance.MEDIUM,
)
CONTROLLER_QUORUM_RETRY_BACKOFF_MS = integer(
    "controller.quorum.retry.backoff.ms",
    20,
    "The wait before a failed request to a voter is sent again.",
    unit="ms",
    allowed=at_least(0),
    importance=Importance.LOW,
)
CONTROLLER_QUORUM_FETCH_MAX_BYTES = integer(
    "controller.quorum.fetch.max.bytes",
    1048576,
    "The maximum size of metadata records in one fetch response.",
    unit="bytes",
    allowed=at_least(1),
    importance=Importance.LOW,
)
CONTROLLER_QUORUM_FETCH_SNAPSHOT_MAX_BYTES = integer(
    "controller.quorum.fetch.snapshot.max.bytes",
    1048576,
    "The maximum size of the part of a metadata snapshot in one response.",
    unit="bytes",
    allowed=at_least(1),
    importance=Importance.LOW,
)
METADATA_LOG_MAX_RECORD_BYTES_BETWEEN_SNAPSHOTS = long(
    "metadata.log.max.record.bytes.between.snapshots",
    20971520,
    "A metadata snapshot is written when the metadata log has grown by this size since the last snapshot.",
    unit="bytes",
    allowed=at_least(1),
    importance=Importance.HIGH,
)
METADATA_LOG_MAX_SNAPSHOT_INTERVAL_MS = long(
    "metadata.log.max.snapshot.interval.ms",
    3600000,
    "A metadata snapshot is written after this time if the metadata has changed. 0 disables snapshots by time.",
    unit="ms",
    allowed=at_least(0),
    importance=Importance.HIGH,
)
METADATA_MAX_RETENTION_BYTES = long(
    "metadata.max.retention.bytes",
    104857600,
    "The maximum size of the metadata log and the snapshots that are older than the newest snapshot. -1 means no "
    "limit.",
    unit="bytes",
    importance=Importance.HIGH,
)
METADATA_MAX_RETENTION_MS = long(
    "metadata.max.retention.ms",
    604800000,
    "The time for which the metadata log and the snapshots that are older than the newest snapshot are kept. -1 "
    "means no limit.",
    unit="ms",
    importance=Importance.HIGH,
)
# Brokers and their controller

BROKER_HEARTBEAT_INTERVAL_MS = integer(
    "broker.heartbeat.interval.ms",
    2000,
    "The interval between heartbeats from a broker to the controller.",
    unit="ms",
    allowed=at_least(1),
    importance=Importance.MEDIUM,
)
BROKER_SESSION_TIMEOUT_MS = integer(
    "broker.session.timeout.ms",
    9000,
    "The time without heartbeats after which the controller fences a broker and elects other leaders for its "
    "partitions. A broker that does not respond to requests either is fenced earlier "
    "(millstream.broker.suspect.after.ms). A broker whose address refuses connections is fenced at once.",
    unit="ms",
    allowed=at_least(1),
    importance=Importance.MEDIUM,
)
MILLSTREAM_BROKER_SUSPECT_AFTER_MS = integer(
    "millstream.broker.suspect.after.ms",
    2000,
    "The time after which the controller fences a broker that sends no heartbeats and does not respond to "
    "requests. Brokers send four heartbeats in this time unless broker.heartbeat.interval.ms is set. The time is "
    "longer if heartbeats or the controller itself are late, and at most broker.session.timeout.ms. With 0 the "
    "controller always waits for the session timeout, as Kafka does; also if broker.session.timeout.ms is set and"
    " this setting is not. Millstream only.",
    unit="ms",
    allowed=at_least(0),
    importance=Importance.MEDIUM,
)
INITIAL_BROKER_REGISTRATION_TIMEOUT_MS = integer(
    "initial.broker.registration.timeout.ms",
    60000,
    "The time within which a starting broker must register with the controller. After it, the broker stops with "
    "an error.",
    unit="ms",
    allowed=at_least(1),
    importance=Importance.MEDIUM,
)
CONTROLLED_SHUTDOWN_ENABLE = boolean(
    "controlled.shutdown.enable",
    True,
    "Moves leadership to other brokers before this broker stops.",
    importance=Importance.MEDIUM,
)
AUTO_LEADER_REBALANCE_ENABLE = boolean(
    "auto.leader.rebalance.enable",
    True,
    "Moves leadership back to preferred replicas automatically.",
    importance=Importance.HIGH,
)
LEADER_IMBALANCE_CHECK_INTERVAL_SECONDS = long(
    "leader.imbalance.check.interval.seconds",
    300,
    "The interval at which the controller checks whether preferred replicas lead.",
    unit="seconds",
    allowed=at_least(1),
    importance=Importance.HIGH,
)
# Replication

REPLICA_LAG_TIME_MAX_MS = long(
    "replica.lag.time.max.ms",
    30000,
    "A follower that has not caught up with the leader for this time is removed from the ISR.",
    unit="ms",
    allowed=at_least(1),
    importance=Importance.HIGH,
)
REPLICA_FETCH_WAIT_MAX_MS = integer(
    "replica.fetch.wait.max.ms",
    500,
    "The maximum time a leader holds a follower's fetch when there are no new records. It must not be above "
    "replica.lag.time.max.ms.",
    unit="ms",
    allowed=at_least(0),
    importance=Importance.HIGH,
)
REPLICA_FETCH_MIN_BYTES = integer(
    "replica.fetch.min.bytes",
    1,
    "The minimum size of a response to a follower's fetch. The leader waits for it up to replica.fetch.wait.max.ms.",
    unit="bytes",
    allowed=at_least(0),
    importance=Importance.HIGH,
)
REPLICA_FETCH_MAX_BYTES = integer(
    "replica.fetch.max.bytes",
    1048576,
    "The maximum size of the records of one partition in a response to a follower. The first batch is returned "
    "even if it is larger.",
    unit="bytes",
    allowed=at_least(0),
    importance=Importance.MEDIUM,
)
REPLICA_FETCH_RESPONSE_MAX_BYTES = integer(
    "replica.fetch.response.max.bytes",
    10485760,
    "The maximum size of a response to a follower.",
    unit="bytes",
    allowed=at_least(0),
    importance=Importance.MEDIUM,
)
REPLICA_FETCH_BACKOFF_MS = integer(
    "replica.fetch.backoff.ms",
    1000,
    "The wait of a follower after a failed fetch.",
    unit="ms",
    allowed=at_least(0),
    importance=Importance.MEDIUM,
)
REPLICA_SOCKET_TIMEOUT_MS = integer(
    "replica.socket.timeout.ms",
    30000,
    "The time a follower waits for the leader's response.",
    unit="ms",
    allowed=at_least(1),
    importance=Importance.HIGH,
)
REPLICA_HIGH_WATERMARK_CHECKPOINT_INTERVAL_MS = long(
    "replica.high.watermark.checkpoint.interval.ms",
    5000,
    "The interval at which high watermarks are written to disk.",
    unit="ms",
    allowed=at_least(1),
    importance=Importance.HIGH,
)
NUM_REPLICA_FETCHERS = integer(
    "num.replica.fetchers",
    1,
    "The number of fetchers, each with a connection, from this broker to each leader it copies from.",
    allowed=at_least(1),
    importance=Importance.HIGH,
    update=Update.CLUSTER_WIDE,
)
REPLICA_SELECTOR_CLASS = optional_string(
    "replica.selector.class",
    "Selects the replica that consumers read from. `org.apache.kafka.common.replica.RackAwareReplicaSelector` "
    "selects a replica in the consumer's `client.rack`. Without it, consumers read from leaders.",
    importance=Importance.MEDIUM,
)
LEADER_REPLICATION_THROTTLED_RATE = long(
    "leader.replication.throttled.rate",
    LONG_MAX,
    "The maximum rate, in bytes per second, at which the replicas in `leader.replication.throttled.replicas` are "
    "read by followers.",
    unit="bytes",
    allowed=at_least(0),
    importance=Importance.MEDIUM,
    update=Update.PER_BROKER,
)
FOLLOWER_REPLICATION_THROTTLED_RATE = long(
    "follower.replication.throttled.rate",
    LONG_MAX,
    "The maximum rate, in bytes per second, at which the replicas in `follower.replication.throttled.replicas` "
    "are copied.",
    unit="bytes",
    allowed=at_least(0),
    importance=Importance.MEDIUM,
    update=Update.PER_BROKER,
)
REPLICA_ALTER_LOG_DIRS_IO_MAX_BYTES_PER_SECOND = long(
    "replica.alter.log.dirs.io.max.bytes.per.second",
    LONG_MAX,
    "The maximum rate, in bytes per second, at which logs are copied between the log directories of a broker.",
    unit="bytes",
    allowed=at_least(1),
    importance=Importance.MEDIUM,
    update=Update.PER_BROKER,
)
CORDONED_LOG_DIRS = listed(
    "cordoned.log.dirs",
    (),
    "Log directories that get no new replicas; `*` for all (KIP-1066). A broker without any other directory gets no "
    "new replicas. `millstream broker drain` sets it while the broker runs; such a value counts before the file's.",
    importance=Importance.MEDIUM,
    update=Update.PER_BROKER,
)
SETTINGS = declared(globals())
