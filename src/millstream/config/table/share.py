"""Settings of share groups: locks, limits, state topic, dead letters."""

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
    "The assignor of share groups.",
    only_default="there is only one assignor",
)
GROUP_SHARE_DELIVERY_COUNT_LIMIT = integer(
    "group.share.delivery.count.limit",
    5,
    "The maximum number of deliveries of a record. After it, the record is archived or written to the dead-letter"
    " topic.",
    allowed=between(2, 10),
)
GROUP_SHARE_MIN_DELIVERY_COUNT_LIMIT = integer(
    "group.share.min.delivery.count.limit",
    2,
    "The minimum value of the group setting `share.delivery.count.limit`.",
    allowed=between(2, 5),
)
GROUP_SHARE_MAX_DELIVERY_COUNT_LIMIT = integer(
    "group.share.max.delivery.count.limit",
    10,
    "The maximum value of the group setting `share.delivery.count.limit`.",
    allowed=between(5, 25),
)
GROUP_SHARE_RECORD_LOCK_DURATION_MS = integer(
    "group.share.record.lock.duration.ms",
    30_000,
    "The time for which a member holds a record that it acquired, unless it renews the lock.",
    unit="ms",
    allowed=between(1000, 3_600_000),
)
GROUP_SHARE_MIN_RECORD_LOCK_DURATION_MS = integer(
    "group.share.min.record.lock.duration.ms",
    15_000,
    "The minimum value of the group setting `share.record.lock.duration.ms`.",
    unit="ms",
    allowed=between(1000, 30_000),
)
GROUP_SHARE_MAX_RECORD_LOCK_DURATION_MS = integer(
    "group.share.max.record.lock.duration.ms",
    60_000,
    "The maximum value of the group setting `share.record.lock.duration.ms`.",
    unit="ms",
    allowed=between(30_000, 3_600_000),
)
GROUP_SHARE_PARTITION_MAX_RECORD_LOCKS = integer(
    "group.share.partition.max.record.locks",
    2000,
    "The maximum number of records in flight in one partition for one group.",
    allowed=between(100, 10_000),
)
GROUP_SHARE_MIN_PARTITION_MAX_RECORD_LOCKS = integer(
    "group.share.min.partition.max.record.locks",
    100,
    "The minimum value of the group setting `share.partition.max.record.locks`.",
    allowed=between(100, 2000),
)
GROUP_SHARE_MAX_PARTITION_MAX_RECORD_LOCKS = integer(
    "group.share.max.partition.max.record.locks",
    4000,
    "The maximum value of the group setting `share.partition.max.record.locks`.",
    allowed=between(2000, 10_000),
)
MILLSTREAM_SHARE_PARTITION_MAX_DEFERRED_RECORDS = integer(
    "millstream.share.partition.max.deferred.records",
    50_000,
    "The maximum number of records in one partition that a group skips because they may not be delivered yet: "
    "they are not due, or an earlier record of their key is in flight. Millstream only.",
    allowed=between(100, 1_000_000),
)
GROUP_SHARE_SESSION_TIMEOUT_MS = integer(
    "group.share.session.timeout.ms",
    45_000,
    "The time without heartbeats after which a member is removed from a share group.",
    unit="ms",
    allowed=at_least(1),
)
GROUP_SHARE_MIN_SESSION_TIMEOUT_MS = integer(
    "group.share.min.session.timeout.ms",
    45_000,
    "The minimum value of the group setting `share.session.timeout.ms`.",
    unit="ms",
    allowed=at_least(1),
)
GROUP_SHARE_MAX_SESSION_TIMEOUT_MS = integer(
    "group.share.max.session.timeout.ms",
    60_000,
    "The maximum value of the group setting `share.session.timeout.ms`.",
    unit="ms",
    allowed=at_least(1),
)
GROUP_SHARE_HEARTBEAT_INTERVAL_MS = integer(
    "group.share.heartbeat.interval.ms",
    5000,
    "The interval between heartbeats of the members of share groups.",
    unit="ms",
    allowed=at_least(1),
)
GROUP_SHARE_MIN_HEARTBEAT_INTERVAL_MS = integer(
    "group.share.min.heartbeat.interval.ms",
    5000,
    "The minimum value of the group setting `share.heartbeat.interval.ms`.",
    unit="ms",
    allowed=at_least(1),
)
GROUP_SHARE_MAX_HEARTBEAT_INTERVAL_MS = integer(
    "group.share.max.heartbeat.interval.ms",
    15_000,
    "The maximum value of the group setting `share.heartbeat.interval.ms`.",
    unit="ms",
    allowed=at_least(1),
)
GROUP_SHARE_MAX_SIZE = integer(
    "group.share.max.size", 200, "The maximum number of members of a share group.", allowed=between(1, 1000)
)
GROUP_SHARE_MAX_SHARE_SESSIONS = integer(
    "group.share.max.share.sessions", 2000, "The maximum number of share sessions on a broker.", allowed=at_least(1)
)
SHARE_COORDINATOR_STATE_TOPIC_NUM_PARTITIONS = integer(
    "share.coordinator.state.topic.num.partitions",
    50,
    "The number of partitions of `__share_group_state` when it is created.",
    allowed=at_least(1),
    importance=Importance.HIGH,
)
SHARE_COORDINATOR_STATE_TOPIC_REPLICATION_FACTOR = short(
    "share.coordinator.state.topic.replication.factor",
    3,
    "The replication factor of `__share_group_state`. With fewer brokers, each broker has one replica.",
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
    "The time within which a change of a share partition's state must be replicated.",
    unit="ms",
    allowed=at_least(1),
    importance=Importance.HIGH,
)
SHARE_COORDINATOR_SNAPSHOT_UPDATE_RECORDS_PER_SNAPSHOT = integer(
    "share.coordinator.snapshot.update.records.per.snapshot",
    500,
    "The number of updates after which a snapshot of a share partition's state is written.",
    allowed=at_least(0),
)
ERRORS_DEADLETTERQUEUE_TOPIC_NAME_PREFIX = string(
    "errors.deadletterqueue.topic.name.prefix",
    "dlq.",
    "The required prefix of the names of dead-letter topics. Empty allows any name.",
    update=Update.CLUSTER_WIDE,
)
ERRORS_DEADLETTERQUEUE_AUTO_CREATE_TOPICS_ENABLE = boolean(
    "errors.deadletterqueue.auto.create.topics.enable",
    False,
    "Creates a missing dead-letter topic when the first record is written to it.",
    update=Update.CLUSTER_WIDE,
)

SETTINGS = declared(globals())
