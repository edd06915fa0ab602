"""The exit codes of the `millstream` command. They are public: scripts rely on them."""

OK = 0
FAILED = 1
"""The command failed; stderr has the reason."""
USAGE = 2
"""Wrong usage: an unknown command, option or value."""
NO_BROKER = 3
"""No broker listens at the address."""
NOT_FOUND = 4
"""The topic, partition, offset or file does not exist."""
EXISTS = 5
"""The topic, pipeline or directory exists already."""
TIMED_OUT = 6
"""No response within the timeout."""
DAMAGED = 7
"""Damaged data: in a log, found by `log dump` or by the broker when it read; in a table, found by `table verify`."""
UNWELL = 8
"""The cluster has problems: `cluster status` found missing brokers, replicas or voters; or a pipeline
or a table has failed."""
NOT_ALLOWED = 9
"""The broker does not accept the credentials, or the user may not do this."""
INTERRUPTED = 130
"""Ctrl-C."""

EXPLANATION = (
    "Exit codes: 0 done, 1 failed, 2 wrong usage, 3 no broker at the address, 4 not found, 5 exists already, "
    "6 timed out, 7 damaged data found, 8 cluster has problems, 9 not allowed, 130 interrupted."
)
