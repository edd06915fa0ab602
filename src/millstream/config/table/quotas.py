"""Settings of quotas: the samples over which rates are measured, and the rate of new connections.

The quotas themselves are metadata of the cluster: `millstream quota`, `kafka-configs`.
"""

from millstream.config.setting import INT_MAX, Importance, Update, at_least, declared, integer

QUOTA_WINDOW_NUM = integer(
    "quota.window.num",
    11,
    "The number of samples over which the rates of client quotas are measured.",
    allowed=at_least(1),
    importance=Importance.LOW,
)
QUOTA_WINDOW_SIZE_SECONDS = integer(
    "quota.window.size.seconds",
    1,
    "The duration of one sample of client quotas.",
    unit="seconds",
    allowed=at_least(1),
    importance=Importance.LOW,
)
CONTROLLER_QUOTA_WINDOW_NUM = integer(
    "controller.quota.window.num",
    11,
    "The number of samples of controller_mutation_rate: a client may use the rate of this many samples at once.",
    allowed=at_least(1),
    importance=Importance.LOW,
)
CONTROLLER_QUOTA_WINDOW_SIZE_SECONDS = integer(
    "controller.quota.window.size.seconds",
    1,
    "The duration of one sample of controller_mutation_rate.",
    unit="seconds",
    allowed=at_least(1),
    importance=Importance.LOW,
)
MAX_CONNECTION_CREATION_RATE = integer(
    "max.connection.creation.rate",
    INT_MAX,
    "The maximum number of new connections per second of this broker. Above it, connections wait to be accepted. "
    "Connections of other brokers on a listener of their own are not limited. "
    "`listener.name.<listener>.max.connection.creation.rate` limits one listener, in addition.",
    allowed=at_least(0),
    update=Update.CLUSTER_WIDE,
)

SETTINGS = declared(globals())
