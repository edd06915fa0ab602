"""Consumer groups that the broker assigns (KIP-848): time-outs, limits, assignors, moving between protocols."""

from millstream.config.setting import INT_MAX, Allowed, at_least, declared, integer, listed, one_of, string

SESSION_TIMEOUT_MS = integer(
    "group.consumer.session.timeout.ms",
    45_000,
    "How long a member of a consumer group may be silent before its partitions go to others. Single groups can have "
    "their own: the group setting `consumer.session.timeout.ms`.",
    unit="ms",
    allowed=at_least(1),
)
MIN_SESSION_TIMEOUT_MS = integer(
    "group.consumer.min.session.timeout.ms",
    45_000,
    "The shortest session time-out that can be set for a single consumer group.",
    unit="ms",
    allowed=at_least(1),
)
MAX_SESSION_TIMEOUT_MS = integer(
    "group.consumer.max.session.timeout.ms",
    60_000,
    "The longest session time-out that can be set for a single consumer group.",
    unit="ms",
    allowed=at_least(1),
)
HEARTBEAT_INTERVAL_MS = integer(
    "group.consumer.heartbeat.interval.ms",
    5000,
    "How often the members of a consumer group are asked to send heartbeats; a rebalance takes about two of them. "
    "Members that wait for partitions are asked for one every second. Single groups can have their own: the group "
    "setting `consumer.heartbeat.interval.ms`.",
    unit="ms",
    allowed=at_least(1),
)
MIN_HEARTBEAT_INTERVAL_MS = integer(
    "group.consumer.min.heartbeat.interval.ms",
    5000,
    "The shortest heartbeat interval that can be set for a single consumer group.",
    unit="ms",
    allowed=at_least(1),
)
MAX_HEARTBEAT_INTERVAL_MS = integer(
    "group.consumer.max.heartbeat.interval.ms",
    15_000,
    "The longest heartbeat interval that can be set for a single consumer group.",
    unit="ms",
    allowed=at_least(1),
)
ASSIGNMENT_INTERVAL_MS = integer(
    "group.consumer.assignment.interval.ms",
    1000,
    "Partitions of a group are assigned anew at most this often, so that many members that come at once cost little. "
    "A group with one member does not wait. Single groups can have their own: the group setting "
    "`consumer.assignment.interval.ms`.",
    unit="ms",
    allowed=at_least(0),
)
MIN_ASSIGNMENT_INTERVAL_MS = integer(
    "group.consumer.min.assignment.interval.ms",
    0,
    "The shortest assignment interval that can be set for a single consumer group.",
    unit="ms",
    allowed=at_least(0),
)
MAX_ASSIGNMENT_INTERVAL_MS = integer(
    "group.consumer.max.assignment.interval.ms",
    15_000,
    "The longest assignment interval that can be set for a single consumer group.",
    unit="ms",
    allowed=at_least(0),
)
MAX_SIZE = integer(
    "group.consumer.max.size", INT_MAX, "How many members a consumer group may have.", allowed=at_least(1)
)
ASSIGNORS = listed(
    "group.consumer.assignors",
    ("uniform", "range"),
    "The ways to assign partitions that members may ask for; the first one serves those who ask for none. `uniform` "
    "gives everyone the same number and moves little, `range` gives the same numbers of several topics to one member.",
    allowed=Allowed("one or both of uniform, range", lambda names: bool(names) and set(names) <= {"uniform", "range"}),
)
MIGRATION_POLICY = string(
    "group.consumer.migration.policy",
    "bidirectional",
    "Whether a running group may move from the classic to the consumer protocol when a member joins with it (upgrade), "
    "back when the last such member leaves (downgrade), both, or neither (disabled).",
    allowed=one_of("bidirectional", "upgrade", "downgrade", "disabled"),
)

SETTINGS = declared(globals())
