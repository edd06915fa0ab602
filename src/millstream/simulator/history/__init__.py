"""Histories of client operations, and a checker that finds anomalies, like Jepsen's Kafka workload.

Clients record every operation with its start and end (`operations`). `evidence` arranges them by partition, and each
kind of anomaly has a check (`checks`, `transaction_checks`). `check(history)` runs all of them.

Unknown outcomes are never anomalies: a send that timed out may appear once or not at all, and a transaction whose
commit got no response happened completely or not at all.
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
