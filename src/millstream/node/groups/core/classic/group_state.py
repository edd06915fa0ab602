"""The states of a classic group, and what may follow what.

| state               | meaning                                     | may follow on                      |
|---------------------|---------------------------------------------|------------------------------------|
| Empty               | no members; perhaps offsets                 | PreparingRebalance (all left)      |
| PreparingRebalance  | waiting for all members to join             | Empty, CompletingRebalance, Stable |
| CompletingRebalance | all have joined; waiting for the assignment | PreparingRebalance                 |
| Stable              | every member can have its assignment        | CompletingRebalance                |
| Dead                | deleted; only stale references still see it | any other                          |

What a request finds:

| request   | Empty              | PreparingRebalance    | CompletingRebalance        | Stable                        |
|-----------|--------------------|-----------------------|----------------------------|-------------------------------|
| JoinGroup | first rebalance    | waits                 | same metadata: answer;     | leader or new metadata:       |
|           |                    |                       | else new rebalance         | new rebalance; else answer    |
| SyncGroup | UNKNOWN_MEMBER_ID  | REBALANCE_IN_PROGRESS | waits for the leader       | the assignment                |
| Heartbeat | UNKNOWN_MEMBER_ID  | REBALANCE_IN_PROGRESS | fine                       | fine                          |
| Leave     | UNKNOWN_MEMBER_ID  | one less to wait for  | new rebalance              | new rebalance                 |
| Commit    | without generation | fine                  | REBALANCE_IN_PROGRESS      | fine                          |
"""

from enum import StrEnum


class GroupState(StrEnum):
    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


_E, _P, _C, _S, _D = GroupState

MAY_FOLLOW: dict[GroupState, frozenset[GroupState]] = {
    _E: frozenset({_P}),
    _P: frozenset({_E, _C, _S}),
    _C: frozenset({_P}),
    _S: frozenset({_C}),
    _D: frozenset({_E, _P, _C, _S}),
}
"""For each state, those it may follow on."""
