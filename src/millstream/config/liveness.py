"""How often a broker sends heartbeats and how long the controller waits for them, as the settings together say."""

from millstream.config.broker_config import BrokerConfig
from millstream.config.table import cluster

_HEARTBEATS_TO_MISS = 4
"""How many heartbeats a broker may miss before it is suspected."""


def suspect_after_s(config: BrokerConfig) -> float | None:
    """After how long a broker that does not respond at all is fenced; None where only the session decides.

    An operator who sets the session timeout means Kafka's rule, unless the new setting is set too.
    """
    session_s = config[cluster.BROKER_SESSION_TIMEOUT_MS] / 1000
    wanted = cluster.MILLSTREAM_BROKER_SUSPECT_AFTER_MS
    if not config.is_set(wanted) and config.is_set(cluster.BROKER_SESSION_TIMEOUT_MS):
        return None
    suspect_s = config[wanted] / 1000
    return suspect_s if 0 < suspect_s < session_s else None


def contact_limit_s(config: BrokerConfig) -> float:
    """After how long without a response of the controller a broker must expect that others lead its partitions.

    The controller counts from the last heartbeat that it got, so it is three quarters of the time after which it acts.
    """
    return 0.75 * (suspect_after_s(config) or config[cluster.BROKER_SESSION_TIMEOUT_MS] / 1000)


def heartbeat_interval_s(config: BrokerConfig) -> float:
    interval_s = config[cluster.BROKER_HEARTBEAT_INTERVAL_MS] / 1000
    suspect_s = suspect_after_s(config)
    if suspect_s is None or config.is_set(cluster.BROKER_HEARTBEAT_INTERVAL_MS):
        return interval_s
    return min(interval_s, suspect_s / _HEARTBEATS_TO_MISS)
