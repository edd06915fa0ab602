"""Settings of streams groups: the broker assigns the tasks of Kafka Streams applications (KIP-1071)."""

from millstream.config.setting import INT_MAX, at_least, declared, integer

SESSION_TIMEOUT_MS = integer(
    "group.streams.session.timeout.ms",
    45_000,
    "The time without heartbeats after which a member is removed from a streams group. The group setting "
    "`streams.session.timeout.ms` overrides it.",
    unit="ms",
    allowed=at_least(1),
)
MIN_SESSION_TIMEOUT_MS = integer(
    "group.streams.min.session.timeout.ms",
    45_000,
    "The minimum value of the group setting `streams.session.timeout.ms`.",
    unit="ms",
    allowed=at_least(1),
)
MAX_SESSION_TIMEOUT_MS = integer(
    "group.streams.max.session.timeout.ms",
    60_000,
    "The maximum value of the group setting `streams.session.timeout.ms`.",
    unit="ms",
    allowed=at_least(1),
)
HEARTBEAT_INTERVAL_MS = integer(
    "group.streams.heartbeat.interval.ms",
    5000,
    "The interval between heartbeats of the members of streams groups. Members that wait for tasks, topics or an "
    "assignment send a heartbeat every second. The group setting `streams.heartbeat.interval.ms` overrides it.",
    unit="ms",
    allowed=at_least(1),
)
MIN_HEARTBEAT_INTERVAL_MS = integer(
    "group.streams.min.heartbeat.interval.ms",
    5000,
    "The minimum value of the group setting `streams.heartbeat.interval.ms`.",
    unit="ms",
    allowed=at_least(1),
)
MAX_HEARTBEAT_INTERVAL_MS = integer(
    "group.streams.max.heartbeat.interval.ms",
    15_000,
    "The maximum value of the group setting `streams.heartbeat.interval.ms`.",
    unit="ms",
    allowed=at_least(1),
)
MAX_SIZE = integer(
    "group.streams.max.size", INT_MAX, "The maximum number of members of a streams group.", allowed=at_least(1)
)
NUM_STANDBY_REPLICAS = integer(
    "group.streams.num.standby.replicas",
    0,
    "The number of standby replicas of each task with state. A standby follows the changelog, so that it can take the "
    "task over without restoring it. The group setting `streams.num.standby.replicas` overrides it.",
    allowed=at_least(0),
)
MAX_STANDBY_REPLICAS = integer(
    "group.streams.max.standby.replicas",
    2,
    "The maximum value of the group setting `streams.num.standby.replicas`.",
    allowed=at_least(0),
)
INITIAL_REBALANCE_DELAY_MS = integer(
    "group.streams.initial.rebalance.delay.ms",
    3000,
    "The time an empty streams group waits for more members before its first assignment. The group setting "
    "`streams.initial.rebalance.delay.ms` overrides it.",
    unit="ms",
    allowed=at_least(0),
)
ASSIGNMENT_INTERVAL_MS = integer(
    "group.streams.assignment.interval.ms",
    1000,
    "The minimum time between two assignments of a streams group, so that many members that join at once cause few "
    "assignments. The group setting `streams.assignment.interval.ms` overrides it.",
    unit="ms",
    allowed=at_least(0),
)
MIN_ASSIGNMENT_INTERVAL_MS = integer(
    "group.streams.min.assignment.interval.ms",
    0,
    "The minimum value of the group setting `streams.assignment.interval.ms`.",
    unit="ms",
    allowed=at_least(0),
)
MAX_ASSIGNMENT_INTERVAL_MS = integer(
    "group.streams.max.assignment.interval.ms",
    15_000,
    "The maximum value of the group setting `streams.assignment.interval.ms`.",
    unit="ms",
    allowed=at_least(0),
)

SETTINGS = declared(globals())
