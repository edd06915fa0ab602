"""Settings of classic and consumer groups, and of committed offsets: limits, timeouts, assignors, retention."""

from millstream.config.setting import (
    INT_MAX,
    Allowed,
    Importance,
    Update,
    at_least,
    declared,
    integer,
    listed,
    long,
    one_of,
    short,
    string,
)

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


# Consumer groups: the broker assigns partitions (KIP-848)

SESSION_TIMEOUT_MS = integer(
    "group.consumer.session.timeout.ms",
    45_000,
    "The time without heartbeats after which a member is removed from a consumer group. The group setting "
    "`consumer.session.timeout.ms` overrides it.",
    unit="ms",
    allowed=at_least(1),
)
MIN_SESSION_TIMEOUT_MS = integer(
    "group.consumer.min.session.timeout.ms",
    45_000,
    "The minimum value of the group setting `consumer.session.timeout.ms`.",
    unit="ms",
    allowed=at_least(1),
)
MAX_SESSION_TIMEOUT_MS = integer(
    "group.consumer.max.session.timeout.ms",
    60_000,
    "The maximum value of the group setting `consumer.session.timeout.ms`.",
    unit="ms",
    allowed=at_least(1),
)
HEARTBEAT_INTERVAL_MS = integer(
    "group.consumer.heartbeat.interval.ms",
    5000,
    "The interval between heartbeats of the members of consumer groups. A rebalance takes about two intervals. "
    "Members that wait for partitions send a heartbeat every second. The group setting "
    "`consumer.heartbeat.interval.ms` overrides it.",
    unit="ms",
    allowed=at_least(1),
)
MIN_HEARTBEAT_INTERVAL_MS = integer(
    "group.consumer.min.heartbeat.interval.ms",
    5000,
    "The minimum value of the group setting `consumer.heartbeat.interval.ms`.",
    unit="ms",
    allowed=at_least(1),
)
MAX_HEARTBEAT_INTERVAL_MS = integer(
    "group.consumer.max.heartbeat.interval.ms",
    15_000,
    "The maximum value of the group setting `consumer.heartbeat.interval.ms`.",
    unit="ms",
    allowed=at_least(1),
)
ASSIGNMENT_INTERVAL_MS = integer(
    "group.consumer.assignment.interval.ms",
    1000,
    "The minimum time between two assignments of a group, so that many members that join at once cause few "
    "assignments. A group with one member does not wait. The group setting `consumer.assignment.interval.ms` "
    "overrides it.",
    unit="ms",
    allowed=at_least(0),
    update=Update.CLUSTER_WIDE,
)
MIN_ASSIGNMENT_INTERVAL_MS = integer(
    "group.consumer.min.assignment.interval.ms",
    0,
    "The minimum value of the group setting `consumer.assignment.interval.ms`.",
    unit="ms",
    allowed=at_least(0),
)
MAX_ASSIGNMENT_INTERVAL_MS = integer(
    "group.consumer.max.assignment.interval.ms",
    15_000,
    "The maximum value of the group setting `consumer.assignment.interval.ms`.",
    unit="ms",
    allowed=at_least(0),
)
MAX_SIZE = integer(
    "group.consumer.max.size", INT_MAX, "The maximum number of members of a consumer group.", allowed=at_least(1)
)
ASSIGNORS = listed(
    "group.consumer.assignors",
    ("uniform", "range"),
    "The assignors that members may select. The first is the default. `uniform` gives each member the same number"
    " of partitions and moves few of them. `range` gives partitions with the same numbers in several topics to "
    "the same member.",
    allowed=Allowed("one or both of uniform, range", lambda names: bool(names) and set(names) <= {"uniform", "range"}),
)
MIGRATION_POLICY = string(
    "group.consumer.migration.policy",
    "bidirectional",
    "Allows a group with members to change from the classic to the consumer protocol when a member joins with it "
    "(`upgrade`), back when the last such member leaves (`downgrade`), both (`bidirectional`), or neither "
    "(`disabled`).",
    allowed=one_of("bidirectional", "upgrade", "downgrade", "disabled"),
)

SETTINGS = declared(globals())
