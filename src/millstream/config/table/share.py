"""Share groups: limits on what members may hold, how their state is kept, and where dead letters go."""

from millstream.config.setting import (
    Importance,
    Update,
    at_least,
    between,
    boolean,
    declared,
    integer,
    listed,
    short,
    string,
)

GROUP_SHARE_ASSIGNORS = listed(
    "group.share.assignors",
    ("simple",),
    "How partitions are given to the members of a share group.",
    only_default="there is one assignor",
)
GROUP_SHARE_DELIVERY_COUNT_LIMIT = integer(
    "group.share.delivery.count.limit",
    5,
    "How often a record is delivered at most; then it is archived, or goes to the dead-letter topic.",
    allowed=between(2, 10),
)
GROUP_SHARE_MIN_DELIVERY_COUNT_LIMIT = integer(
    "group.share.min.delivery.count.limit", 2, "The least a group may set for itself.", allowed=between(2, 5)
)
GROUP_SHARE_MAX_DELIVERY_COUNT_LIMIT = integer(
    "group.share.max.delivery.count.limit", 10, "The most a group may set for itself.", allowed=between(5, 25)
)
GROUP_SHARE_RECORD_LOCK_DURATION_MS = integer(
    "group.share.record.lock.duration.ms",
    30_000,
    "How long a member holds a record it was given, unless it renews.",
    unit="ms",
    allowed=between(1000, 3_600_000),
)
GROUP_SHARE_MIN_RECORD_LOCK_DURATION_MS = integer(
    "group.share.min.record.lock.duration.ms",
    15_000,
    "The least a group may set for itself.",
    unit="ms",
    allowed=between(1000, 30_000),
)
GROUP_SHARE_MAX_RECORD_LOCK_DURATION_MS = integer(
    "group.share.max.record.lock.duration.ms",
    60_000,
    "The most a group may set for itself.",
    unit="ms",
    allowed=between(30_000, 3_600_000),
)
GROUP_SHARE_PARTITION_MAX_RECORD_LOCKS = integer(
    "group.share.partition.max.record.locks",
    2000,
    "How many records of one partition may be in flight for one group.",
    allowed=between(100, 10_000),
)
GROUP_SHARE_MIN_PARTITION_MAX_RECORD_LOCKS = integer(
    "group.share.min.partition.max.record.locks",
    100,
    "The least a group may set for itself.",
    allowed=between(100, 2000),
)
GROUP_SHARE_MAX_PARTITION_MAX_RECORD_LOCKS = integer(
    "group.share.max.partition.max.record.locks",
    4000,
    "The most a group may set for itself.",
    allowed=between(2000, 10_000),
)
MILLSTREAM_SHARE_PARTITION_MAX_DEFERRED_RECORDS = integer(
    "millstream.share.partition.max.deferred.records",
    50_000,
    "How many records of one partition that may not be handed out yet (not due, or behind another of their key) a "
    "group looks past to find others that may. Millstream's own.",
    allowed=between(100, 1_000_000),
)
GROUP_SHARE_SESSION_TIMEOUT_MS = integer(
    "group.share.session.timeout.ms",
    45_000,
    "After what silence a member of a share group is taken for gone.",
    unit="ms",
    allowed=at_least(1),
)
GROUP_SHARE_MIN_SESSION_TIMEOUT_MS = integer(
    "group.share.min.session.timeout.ms", 45_000, "The least a group may set.", unit="ms", allowed=at_least(1)
)
GROUP_SHARE_MAX_SESSION_TIMEOUT_MS = integer(
    "group.share.max.session.timeout.ms", 60_000, "The most a group may set.", unit="ms", allowed=at_least(1)
)
GROUP_SHARE_HEARTBEAT_INTERVAL_MS = integer(
    "group.share.heartbeat.interval.ms",
    5000,
    "How often members of share groups are told to send a sign of life.",
    unit="ms",
    allowed=at_least(1),
)
GROUP_SHARE_MIN_HEARTBEAT_INTERVAL_MS = integer(
    "group.share.min.heartbeat.interval.ms", 5000, "The least a group may set.", unit="ms", allowed=at_least(1)
)
GROUP_SHARE_MAX_HEARTBEAT_INTERVAL_MS = integer(
    "group.share.max.heartbeat.interval.ms", 15_000, "The most a group may set.", unit="ms", allowed=at_least(1)
)
GROUP_SHARE_MAX_SIZE = integer(
    "group.share.max.size", 200, "How many members a share group may have.", allowed=between(1, 1000)
)
GROUP_SHARE_MAX_SHARE_SESSIONS = integer(
    "group.share.max.share.sessions", 2000, "How many share sessions a broker keeps.", allowed=at_least(1)
)
SHARE_COORDINATOR_STATE_TOPIC_NUM_PARTITIONS = integer(
    "share.coordinator.state.topic.num.partitions",
    50,
    "How many partitions `__share_group_state` is made with.",
    allowed=at_least(1),
    importance=Importance.HIGH,
)
SHARE_COORDINATOR_STATE_TOPIC_REPLICATION_FACTOR = short(
    "share.coordinator.state.topic.replication.factor",
    3,
    "How many replicas `__share_group_state` is made with; fewer if there are fewer brokers.",
    allowed=at_least(1),
    importance=Importance.HIGH,
)
SHARE_COORDINATOR_STATE_TOPIC_SEGMENT_BYTES = integer(
    "share.coordinator.state.topic.segment.bytes",
    100 << 20,
    "The size at which a segment of `__share_group_state` is closed.",
    unit="bytes",
    allowed=at_least(1 << 20),
    importance=Importance.HIGH,
)
SHARE_COORDINATOR_WRITE_TIMEOUT_MS = integer(
    "share.coordinator.write.timeout.ms",
    5000,
    "How long a change of a share-partition's state may take to reach the replicas before it counts as failed.",
    unit="ms",
    allowed=at_least(1),
    importance=Importance.HIGH,
)
SHARE_COORDINATOR_SNAPSHOT_UPDATE_RECORDS_PER_SNAPSHOT = integer(
    "share.coordinator.snapshot.update.records.per.snapshot",
    500,
    "After how many updates the state of a share-partition is written out as a whole.",
    allowed=at_least(0),
)
ERRORS_DEADLETTERQUEUE_TOPIC_NAME_PREFIX = string(
    "errors.deadletterqueue.topic.name.prefix",
    "dlq.",
    "What the name of every dead-letter topic begins with; empty allows any name.",
    update=Update.CLUSTER_WIDE,
)
ERRORS_DEADLETTERQUEUE_AUTO_CREATE_TOPICS_ENABLE = boolean(
    "errors.deadletterqueue.auto.create.topics.enable",
    False,
    "Whether a dead-letter topic that is missing is made when the first record is to go there.",
    update=Update.CLUSTER_WIDE,
)

SETTINGS = declared(globals())
