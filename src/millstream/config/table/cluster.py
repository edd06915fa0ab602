"""Nodes that form a cluster: the metadata quorum, brokers and their controller, replication."""

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
    "How long a voter that stands for leader waits for votes before it tries again.",
    unit="ms",
    allowed=at_least(0),
    importance=Importance.HIGH,
)
CONTROLLER_QUORUM_FETCH_TIMEOUT_MS = integer(
    "controller.quorum.fetch.timeout.ms",
    2000,
    "How long a voter lets a silent leader lead before it asks the others whether to elect another; a leader that "
    "most voters have not asked for news in one and a half times as long resigns.",
    unit="ms",
    allowed=at_least(0),
    importance=Importance.HIGH,
)
CONTROLLER_QUORUM_ELECTION_BACKOFF_MAX_MS = integer(
    "controller.quorum.election.backoff.max.ms",
    1000,
    "The longest wait after an election that nobody won.",
    unit="ms",
    allowed=at_least(0),
    importance=Importance.HIGH,
)
CONTROLLER_QUORUM_REQUEST_TIMEOUT_MS = integer(
    "controller.quorum.request.timeout.ms",
    2000,
    "How long a node waits for a voter's answer.",
    unit="ms",
    allowed=at_least(0),
    importance=Importance.MEDIUM,
)
CONTROLLER_QUORUM_RETRY_BACKOFF_MS = integer(
    "controller.quorum.retry.backoff.ms",
    20,
    "The wait before a request to a voter that failed is sent again.",
    unit="ms",
    allowed=at_least(0),
    importance=Importance.LOW,
)
CONTROLLER_QUORUM_FETCH_MAX_BYTES = integer(
    "controller.quorum.fetch.max.bytes",
    1048576,
    "How much of the metadata log one answer carries.",
    unit="bytes",
    allowed=at_least(1),
    importance=Importance.LOW,
)
CONTROLLER_QUORUM_FETCH_SNAPSHOT_MAX_BYTES = integer(
    "controller.quorum.fetch.snapshot.max.bytes",
    1048576,
    "How much of a metadata snapshot one answer carries.",
    unit="bytes",
    allowed=at_least(1),
    importance=Importance.LOW,
)
METADATA_LOG_MAX_RECORD_BYTES_BETWEEN_SNAPSHOTS = long(
    "metadata.log.max.record.bytes.between.snapshots",
    20971520,
    "A snapshot of the metadata is written when the log has grown by so much since the last one.",
    unit="bytes",
    allowed=at_least(1),
    importance=Importance.HIGH,
)
METADATA_LOG_MAX_SNAPSHOT_INTERVAL_MS = long(
    "metadata.log.max.snapshot.interval.ms",
    3600000,
    "A snapshot of the metadata is written at the latest after this time if anything changed; 0 switches this off.",
    unit="ms",
    allowed=at_least(0),
    importance=Importance.HIGH,
)
METADATA_MAX_RETENTION_BYTES = long(
    "metadata.max.retention.bytes",
    104857600,
    "How much of the metadata log and its snapshots is kept behind the newest snapshot; -1 is no limit.",
    unit="bytes",
    importance=Importance.HIGH,
)
METADATA_MAX_RETENTION_MS = long(
    "metadata.max.retention.ms",
    604800000,
    "How long the metadata log and its snapshots are kept behind the newest snapshot; -1 is no limit.",
    unit="ms",
    importance=Importance.HIGH,
)
# Brokers and their controller

BROKER_HEARTBEAT_INTERVAL_MS = integer(
    "broker.heartbeat.interval.ms",
    2000,
    "How often a broker tells the controller that it lives.",
    unit="ms",
    allowed=at_least(1),
    importance=Importance.MEDIUM,
)
BROKER_SESSION_TIMEOUT_MS = integer(
    "broker.session.timeout.ms",
    9000,
    "How long the controller waits for a broker without heartbeats before it gives its partitions to others. It waits "
    "less for one that does not respond at all (millstream.broker.suspect.after.ms), and not at all for one whose "
    "address refuses connections.",
    unit="ms",
    allowed=at_least(1),
    importance=Importance.MEDIUM,
)
MILLSTREAM_BROKER_SUSPECT_AFTER_MS = integer(
    "millstream.broker.suspect.after.ms",
    2000,
    "How long the controller waits for a broker that sends no heartbeats and does not respond to a request either, "
    "before it gives its partitions to others. Brokers send four heartbeats in this time unless "
    "broker.heartbeat.interval.ms is set. The wait is longer where heartbeats or the controller itself are late, and "
    "never longer than broker.session.timeout.ms. 0 waits for the session in every case, as Kafka does; so does "
    "setting broker.session.timeout.ms and not this.",
    unit="ms",
    allowed=at_least(0),
    importance=Importance.MEDIUM,
)
INITIAL_BROKER_REGISTRATION_TIMEOUT_MS = integer(
    "initial.broker.registration.timeout.ms",
    60000,
    "How long a broker that starts tries to register before it gives up.",
    unit="ms",
    allowed=at_least(1),
    importance=Importance.MEDIUM,
)
CONTROLLED_SHUTDOWN_ENABLE = boolean(
    "controlled.shutdown.enable",
    True,
    "Whether a broker that is told to stop hands over its leaderships first.",
    importance=Importance.MEDIUM,
)
AUTO_LEADER_REBALANCE_ENABLE = boolean(
    "auto.leader.rebalance.enable",
    True,
    "Whether leaderships go back to the preferred replicas by themselves.",
    importance=Importance.HIGH,
)
LEADER_IMBALANCE_CHECK_INTERVAL_SECONDS = long(
    "leader.imbalance.check.interval.seconds",
    300,
    "How often leaderships that are not at their preferred replica are looked for.",
    unit="seconds",
    allowed=at_least(1),
    importance=Importance.HIGH,
)
# Replication

REPLICA_LAG_TIME_MAX_MS = long(
    "replica.lag.time.max.ms",
    30000,
    "A follower that has not caught up for this long is no longer in sync.",
    unit="ms",
    allowed=at_least(1),
    importance=Importance.HIGH,
)
REPLICA_FETCH_WAIT_MAX_MS = integer(
    "replica.fetch.wait.max.ms",
    500,
    "How long a leader lets a follower wait for new records. Must be less than replica.lag.time.max.ms.",
    unit="ms",
    allowed=at_least(0),
    importance=Importance.HIGH,
)
REPLICA_FETCH_MIN_BYTES = integer(
    "replica.fetch.min.bytes",
    1,
    "How much a follower waits for, up to replica.fetch.wait.max.ms.",
    unit="bytes",
    allowed=at_least(0),
    importance=Importance.HIGH,
)
REPLICA_FETCH_MAX_BYTES = integer(
    "replica.fetch.max.bytes",
    1048576,
    "How much of one partition a follower fetches at once; a larger batch comes alone.",
    unit="bytes",
    allowed=at_least(0),
    importance=Importance.MEDIUM,
)
REPLICA_FETCH_RESPONSE_MAX_BYTES = integer(
    "replica.fetch.response.max.bytes",
    10485760,
    "How much a follower fetches at once in all.",
    unit="bytes",
    allowed=at_least(0),
    importance=Importance.MEDIUM,
)
REPLICA_FETCH_BACKOFF_MS = integer(
    "replica.fetch.backoff.ms",
    1000,
    "The wait before a follower tries again after a failure.",
    unit="ms",
    allowed=at_least(0),
    importance=Importance.MEDIUM,
)
REPLICA_SOCKET_TIMEOUT_MS = integer(
    "replica.socket.timeout.ms",
    30000,
    "How long a follower waits for a leader's answer.",
    unit="ms",
    allowed=at_least(1),
    importance=Importance.HIGH,
)
REPLICA_HIGH_WATERMARK_CHECKPOINT_INTERVAL_MS = long(
    "replica.high.watermark.checkpoint.interval.ms",
    5000,
    "How often high watermarks are written down.",
    unit="ms",
    allowed=at_least(1),
    importance=Importance.HIGH,
)
NUM_REPLICA_FETCHERS = integer(
    "num.replica.fetchers",
    1,
    "How many connections a broker uses to copy from each of the others.",
    allowed=at_least(1),
    importance=Importance.HIGH,
)
REPLICA_SELECTOR_CLASS = optional_string(
    "replica.selector.class",
    "Which replica consumers are sent to: `org.apache.kafka.common.replica.RackAwareReplicaSelector` sends those "
    "with a `client.rack` to a replica in that rack; left out, all read from leaders.",
    importance=Importance.MEDIUM,
)
LEADER_REPLICATION_THROTTLED_RATE = long(
    "leader.replication.throttled.rate",
    LONG_MAX,
    "How many bytes a second may be copied from the replicas that `leader.replication.throttled.replicas` names.",
    unit="bytes",
    allowed=at_least(0),
    importance=Importance.MEDIUM,
    update=Update.PER_BROKER,
)
FOLLOWER_REPLICATION_THROTTLED_RATE = long(
    "follower.replication.throttled.rate",
    LONG_MAX,
    "How many bytes a second may be copied to the replicas that `follower.replication.throttled.replicas` names.",
    unit="bytes",
    allowed=at_least(0),
    importance=Importance.MEDIUM,
    update=Update.PER_BROKER,
)
CORDONED_LOG_DIRS = listed(
    "cordoned.log.dirs",
    (),
    "`*`, or the data directory, for a broker that shall get no new replicas, as `millstream broker drain` sets it. It "
    "is for running brokers: in a file it has no effect.",
    importance=Importance.MEDIUM,
    update=Update.PER_BROKER,
)
SETTINGS = declared(globals())
