"""Settings of groups and committed offsets: limits, timeouts, retention."""

from millstream.config.setting import INT_MAX, Importance, at_least, declared, integer, long, short

GROUP_MIN_SESSION_TIMEOUT_MS = integer(
    "group.min.session.timeout.ms",
    6000,
    "The minimum session timeout of members of classic groups. With a short timeout, failed members are detected "
    "earlier, but more heartbeats are sent.",
    unit="ms",
)
GROUP_MAX_SESSION_TIMEOUT_MS = integer(
    "group.max.session.timeout.ms",
    1_800_000,
    "The maximum session timeout of members of classic groups.",
    unit="ms",
)
GROUP_INITIAL_REBALANCE_DELAY_MS = integer(
    "group.initial.rebalance.delay.ms",
    3000,
    "The time an empty classic group waits for more members before its first rebalance. Each new member extends "
    "it, up to the rebalance timeout.",
    unit="ms",
    allowed=at_least(0),
)
GROUP_MAX_SIZE = integer(
    "group.max.size", INT_MAX, "The maximum number of members of a classic group.", allowed=at_least(1)
)
OFFSET_METADATA_MAX_BYTES = integer(
    "offset.metadata.max.bytes",
    4096,
    "The maximum size of the metadata text of a committed offset.",
    unit="bytes",
    importance=Importance.HIGH,
)
OFFSETS_RETENTION_MINUTES = integer(
    "offsets.retention.minutes",
    7 * 24 * 60,
    "The time for which committed offsets are kept after the group became empty, or after it unsubscribed from "
    "the topic.",
    unit="minutes",
    allowed=at_least(1),
    importance=Importance.HIGH,
)
OFFSETS_RETENTION_CHECK_INTERVAL_MS = long(
    "offsets.retention.check.interval.ms",
    600_000,
    "The interval at which the coordinator checks for expired offsets.",
    unit="ms",
    allowed=at_least(1),
    importance=Importance.HIGH,
)
OFFSETS_COMMIT_TIMEOUT_MS = integer(
    "offsets.commit.timeout.ms",
    5000,
    "The time within which an offset commit, or another change of a group, must be replicated. After it, the "
    "client gets a retriable error.",
    unit="ms",
    allowed=at_least(1),
    importance=Importance.HIGH,
)
OFFSETS_TOPIC_NUM_PARTITIONS = integer(
    "offsets.topic.num.partitions",
    50,
    "The number of partitions of `__consumer_offsets` when it is created.",
    allowed=at_least(1),
    importance=Importance.HIGH,
)
OFFSETS_TOPIC_REPLICATION_FACTOR = short(
    "offsets.topic.replication.factor",
    3,
    "The replication factor of `__consumer_offsets`. With fewer brokers, each broker has one replica.",
    allowed=at_least(1),
    importance=Importance.HIGH,
)
OFFSETS_TOPIC_SEGMENT_BYTES = integer(
    "offsets.topic.segment.bytes",
    100 << 20,
    "The size at which a segment of `__consumer_offsets` is closed. Small segments make compaction and loading faster.",
    unit="bytes",
    allowed=at_least(1 << 20),
    importance=Importance.HIGH,
)

SETTINGS = declared(globals())
