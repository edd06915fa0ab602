"""Settings of consumer groups (KIP-848): timeouts, limits, assignors, migration between protocols."""

from millstream.config.setting import INT_MAX, Allowed, at_least, declared, integer, listed, one_of, string

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
