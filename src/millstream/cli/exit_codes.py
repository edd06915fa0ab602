"""What the `millstream` command's exit codes mean; scripts rely on these numbers."""

OK = 0
FAILED = 1
"""The work could not be done; stderr says why."""
USAGE = 2
"""The command line was not understood."""
NO_BROKER = 3
"""Nobody answers at the broker's address."""
NOT_FOUND = 4
"""The topic, partition, offset or file does not exist."""
EXISTS = 5
"""What was to be created is there already."""
TIMED_OUT = 6
"""The broker answered too late, or not at all."""
DAMAGED = 7
"""Bytes in a log are not what they should be: found by `log dump`, or by the broker while reading."""
UNWELL = 8
"""The cluster works, but not all of it is well: `cluster status` found brokers, replicas or voters missing."""
INTERRUPTED = 130
"""Ctrl-C."""

EXPLANATION = (
    "Exit codes: 0 done, 1 failed, 2 wrong usage, 3 no broker at the address, 4 not found, 5 exists already, "
    "6 timed out, 7 damaged data found, 8 cluster not well, 130 interrupted."
)
