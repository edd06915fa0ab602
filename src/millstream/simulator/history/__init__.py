"""Histories of what clients of a log did and saw, and the checker that finds what a correct log could not have done.

In the manner of Jepsen's Kafka workload: clients record every operation with the time it began and ended
(`operations`, `recorder`), all evidence about one partition is put side by side (`evidence`), and each kind of anomaly
is a small check of its own (`checks`). `check(history)` runs them all.

What a client could not know is never held against the log: a send that timed out may appear, once, or not at all; a
transaction whose commit got no answer happened as a whole or not at all. Transactions, copies made by
consume-transform-produce loops, and offsets committed with them have checks of their own (`transaction_checks`).
"""

from millstream.simulator.history.checker import Report, check
from millstream.simulator.history.evidence import Anomaly, Kind
from millstream.simulator.history.operations import (
    Assigned,
    Commit,
    CommittedRead,
    Compacted,
    EndRead,
    Fate,
    History,
    Outcome,
    Poll,
    Recorder,
    Seen,
    Send,
    Source,
    StaleAllowed,
    Transaction,
)

__all__ = [
    "Anomaly",
    "Assigned",
    "Commit",
    "CommittedRead",
    "Compacted",
    "EndRead",
    "Fate",
    "History",
    "Kind",
    "Outcome",
    "Poll",
    "Recorder",
    "Report",
    "Seen",
    "Send",
    "Source",
    "StaleAllowed",
    "Transaction",
    "check",
]
