"""Who coordinates a transaction at the moment at which it is decided and not yet carried out, read from the logs of the
coordinators: the worst moment for them to go."""

import struct
from collections.abc import Mapping

from millstream.node.runtime.node import Node
from millstream.simulator.sight import UNREADABLE, StoredLog
from millstream.simulator.transaction_log import STATE_TOPIC

STATE_VALUE = struct.Struct(">hqhib")
"""Of a value, all versions: version, producer id, epoch, timeout, state."""
STATES = ("Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort", "Dead", "Fencing")
_DECIDED = frozenset(("PrepareCommit", "PrepareAbort"))
_LOOK_BACK = 4
"""So many of the latest records are looked at."""


class Decisions:
    """Remembers how far it has looked, for it is asked often."""

    def __init__(self) -> None:
        self._ends: dict[tuple[int, int], int] = {}

    def coordinator(self, nodes: Mapping[int, Node | None]) -> int:
        """A node that has just written a decision, which is committed; 0 for none."""
        for node_id, node in nodes.items():
            if node is None or node.broker is None:
                continue
            for number, partition in node.broker.partitions.by_name.get(STATE_TOPIC.encode(), {}).items():
                log, end = partition.opened_log, partition.high_watermark
                at = (node_id, number)
                if log is None or not partition.is_leader or self._ends.get(at) == end:
                    continue
                self._ends[at] = end
                if _is_decided(StoredLog(log), end):
                    return node_id
        return 0


def _is_decided(log: StoredLog, end: int) -> bool:
    states: dict[bytes | None, str] = {}
    try:
        for batch in log.batches(max(log.start, end - _LOOK_BACK), end):
            for record in batch.records:
                if record.value is not None:
                    states[record.key] = STATES[STATE_VALUE.unpack_from(record.value)[4]]
    except UNREADABLE:
        return False  # others find that
    return not _DECIDED.isdisjoint(states.values())
