"""Consumer groups (KIP-848), whose partitions the broker assigns: members, target assignment, reconciliation.

A member sends ConsumerGroupHeartbeat and gets its assignment. The group epoch grows when members or their topics
change. An assignor then computes a target for that epoch. Each member moves to its target step by step: it revokes
partitions first, and gets a partition only when no other member has it. Members of the classic protocol may be in the
same group, so that a running group can migrate from one protocol to the other (`classic_members.py`).
"""
